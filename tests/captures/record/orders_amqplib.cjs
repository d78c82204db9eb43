// Orders by amqplib: says on standard output, one JSON object per line, what it sent and what it was told.
// Types of headers are given explicitly ({'!': type, value}), so that what is said is what was put on the wire.
'use strict';
const amqp = require('amqplib');

const port = Number(process.argv[2]);
const say = (entry) => process.stdout.write(JSON.stringify(entry) + '\n');
const note = (client, way, method, args, rest) =>
  say({ client, way, channel: 1, method, arguments: args, ...rest });

// [letter, value, what amqplib is given]
const number = (letter, type, value) => ({ said: { type: letter, value }, given: { '!': type, value } });
const text = (value) => ({ said: { type: 'S', value }, given: value });
const fields = (i) => ({
  'x-attempt': number('b', 'int8', -i),
  'x-octet': number('B', 'uint8', 200 + i),
  'x-short': number('s', 'int16', -1000 * i),
  'x-port': number('u', 'uint16', 60000 + i),
  'x-int': number('I', 'int32', -100000 * i),
  'x-size': number('i', 'uint32', 4000000000 + i),
  'x-long': number('l', 'int64', 1000000000000 + i),
  'x-rate': number('d', 'double', i / 3),
  'x-share': number('f', 'float', i / 8),
  'x-at': number('T', 'timestamp', 1700000000 + i),
  'x-total': { said: { type: 'D', scale: 2, value: 1999 * i }, given: { '!': 'decimal', value: { places: 2, digits: 1999 * i } } },
  'x-gift': { said: { type: 't', value: i % 2 === 0 }, given: i % 2 === 0 },
  'x-none': { said: { type: 'V', value: null }, given: null },
  'x-seal': { said: { type: 'x', value: `0${i}ce` }, given: Buffer.from([i, 0xce]) },
  'x-lines': {
    said: { type: 'A', value: [{ type: 'F', value: { sku: { type: 'S', value: 'größe' } } }, { type: 'S', value: 'last' }] },
    given: [{ sku: 'größe' }, 'last'],
  },
  traceparent: text(`00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333${i}-01`),
});

async function open(client) {
  const connection = await amqp.connect(`amqp://guest:guest@127.0.0.1:${port}?heartbeat=0`, {
    clientProperties: { connection_name: client },
  });
  say({ client, port: connection.connection.stream.localPort });
  return connection;
}

async function main() {
  const store = await open('store');
  const incoming = await store.createChannel();
  note('store', 'sent', 'channel.open', {});
  await incoming.assertExchange('js-orders', 'topic', { durable: false });
  const { queue } = await incoming.assertQueue('js-orders-all', { exclusive: true });
  await incoming.bindQueue(queue, 'js-orders', 'orders.*.new');
  await incoming.prefetch(2);

  let handled = 0;
  const finished = new Promise((resolve) => {
    const settle = (method, args, action) => {
      note('store', 'sent', method, args);
      action();
      handled += 1;
      if (handled === 6) resolve();
    };
    note('store', 'sent', 'basic.consume', { consumer_tag: 'js', queue, no_ack: false });
    incoming.consume(queue, (message) => {
      const { deliveryTag, consumerTag, exchange, routingKey, redelivered } = message.fields;
      note('store', 'told', 'basic.deliver',
        { consumer_tag: consumerTag, delivery_tag: deliveryTag, exchange, routing_key: routingKey, redelivered },
        { body: message.content.toString(), properties: { content_type: message.properties.contentType,
          delivery_mode: message.properties.deliveryMode, message_id: message.properties.messageId,
          timestamp: message.properties.timestamp } });
      setTimeout(() => {
        if (deliveryTag === 3) {
          settle('basic.nack', { delivery_tag: 3, multiple: false, requeue: false }, () => incoming.nack(message, false, false));
        } else {
          settle('basic.ack', { delivery_tag: deliveryTag, multiple: false }, () => incoming.ack(message));
        }
      }, 5);
    }, { consumerTag: 'js' });
  });

  const shop = await open('shop');
  const outgoing = await shop.createConfirmChannel();
  note('shop', 'sent', 'channel.open', {});
  note('shop', 'sent', 'confirm.select', {});
  outgoing.on('ack', (f) => note('shop', 'told', 'basic.ack', { delivery_tag: f.deliveryTag, multiple: f.multiple }));
  for (let i = 1; i <= 6; i += 1) {
    const table = Object.entries(fields(i));
    const said = Object.fromEntries(table.map(([name, field]) => [name, field.said]));
    const headers = Object.fromEntries(table.map(([name, field]) => [name, field.given]));
    const body = JSON.stringify({ order: i });
    note('shop', 'sent', 'basic.publish', { exchange: 'js-orders', routing_key: 'orders.eu.new', mandatory: false },
      { body, headers: said, properties: { content_type: 'application/json', delivery_mode: 2, message_id: `js-${i}`, timestamp: 1700000000 } });
    outgoing.publish('js-orders', 'orders.eu.new', Buffer.from(body), {
      headers, contentType: 'application/json', persistent: true, messageId: `js-${i}`, timestamp: 1700000000,
    });
  }
  await outgoing.waitForConfirms();
  await finished;
  await store.close();
  await shop.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
