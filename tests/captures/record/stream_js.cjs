// Publishes and consumes by rabbitmq-stream-js-client: says on standard output, one JSON object per line, what it did.
'use strict';
const net = require('net');
const say = (entry) => process.stdout.write(JSON.stringify(entry) + '\n');
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...rest) {
  this.once('connect', () =>
    say({ local: [this.localAddress, this.localPort], remote: [this.remoteAddress, this.remotePort] }));
  return connect.apply(this, rest);
};
const { connect: login, Offset } = require('rabbitmq-stream-js-client');
const path = require('path');
const inside = path.dirname(require.resolve('rabbitmq-stream-js-client'));
// The client asks for command versions unasked, which brokers before 3.11 take for an unknown frame.
require(path.join(inside, 'connection.js')).Connection.prototype.exchangeCommandVersions = async () => true;
const { CompressionType } = require(path.join(inside, 'compression.js'));
const port = Number(process.argv[2]);
const at = () => Date.now() * 1000000;

const main = async () => {
  const client = await login({
    hostname: 'localhost', port, username: 'guest', password: 'guest', vhost: '/', heartbeat: 0, frameMax: 0,
  });
  await client.createStream({ stream: 'js', arguments: {} });
  const publisher = await client.declarePublisher({ stream: 'js', publisherRef: 'js-shop' });
  const send = async (n) => {
    const number = BigInt(n);
    const body = `order ${n}`;
    await publisher.send(Buffer.from(body), {
      publishingId: number,
      messageProperties: { messageId: `m-${n}`, contentType: 'text/plain', correlationId: `c-${n}` },
      applicationProperties: { n, shop: 'größe' },
      messageAnnotations: { 'x-node': 'yes' },
    });
    say({ t_ns: at(), what: 'publish', stream: 'js', publisher_reference: 'js-shop', publish_seq: n, text: body });
  };
  for (let n = 1; n <= 5; n += 1) await send(n);
  await publisher.flush();
  const batch = [6, 7, 8].map((n) => ({ content: Buffer.from(`packed ${n}`) }));
  // With a reference the broker would drop the sub-batch: the client gives it the id of the message before.
  const anonymous = await client.declarePublisher({ stream: 'js' });
  await anonymous.sendSubEntries(batch, CompressionType.Gzip);
  await new Promise((resolve) => setTimeout(resolve, 500));
  let count = 0;
  await new Promise((resolve) => {
    client.declareConsumer({ stream: 'js', offset: Offset.first(), consumerRef: 'js-reader' }, (message) => {
      say({ t_ns: at(), what: 'deliver', stream: 'js', offset: Number(message.offset), text: message.content.toString() });
      count += 1;
      if (count === 8) resolve();
    });
  });
  await client.close();
};
main().then(() => process.exit(0), (error) => { process.stderr.write(`${error.stack}\n`); process.exit(1); });
