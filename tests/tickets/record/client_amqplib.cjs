// amqplib (Node.js) driven by lines of a script: see clients.py.
const amqp = require('amqplib');
const sleep = ms => new Promise(done => setTimeout(done, ms));
const channels = {}, inbox = {}, confirmed = {};
let connection;
const of = given => channels[given.channel || 1];
const ops = {
    async open({name, host, port, vhost, user, password, heartbeat, channel_max, tls, mute}) {
        connection = await amqp.connect(
            {protocol: tls ? 'amqps' : 'amqp', hostname: host, port, vhost, username: user, password, heartbeat, channelMax: channel_max || 0},
            {noDelay: true, rejectUnauthorized: false, clientProperties: {
                ...(name ? {connection_name: name} : {}),
                ...(mute ? {capabilities: {publisher_confirms: true, 'basic.nack': true}} : {})}});
        connection.on('error', () => 0); },
    async channel_open({channel = 1, confirms}) {
        const made = await (confirms ? connection.createConfirmChannel() : connection.createChannel());
        made.on('error', () => 0); made.on('return', () => 0);
        channels[channel] = made; inbox[channel] = []; confirmed[channel] = []; },
    channel_close: async given => of(given).close(),
    async declare(given) {
        const {queue, durable = true, exclusive = false, passive = false, ...rest} = given;
        return passive ? of(given).checkQueue(queue)
            : of(given).assertQueue(queue, {durable, exclusive, autoDelete: rest.auto_delete, arguments: rest.arguments}); },
    exchange: async given => of(given).assertExchange(given.exchange, given.kind || 'direct',
        {arguments: given.arguments}),
    bind: async given => of(given).bindQueue(given.queue, given.exchange, given.key),
    unbind: async given => of(given).unbindQueue(given.queue, given.exchange, given.key),
    async publish(given) {
        const {exchange = '', key, body = 'x', repeat = 1, mandatory, properties: p = {}} = given;
        for (let n = 0; n < repeat; n++) { const content = Buffer.from(body), options = {mandatory, messageId: p.message_id,
                expiration: p.expiration, replyTo: p.reply_to, correlationId: p.correlation_id, persistent: true};
            const channel = of(given);
            if (channel.waitForConfirms) confirmed[given.channel || 1].push(new Promise(done =>
                channel.publish(exchange, key, content, options, error => done(!error))));
            else channel.publish(exchange, key, content, options); } },
    async wait(given) { const sent = confirmed[given.channel || 1].splice(0); return (await Promise.all(sent)).every(x => x); },
    qos: async given => of(given).prefetch(given.count),
    async consume(given) { const {consumerTag} = await of(given).consume(given.queue, m => m && inbox[given.channel || 1].push(m),
        {noAck: given.no_ack, exclusive: given.exclusive, consumerTag: given.tag, priority: given.priority});
        return consumerTag; },
    cancel: async given => of(given).cancel(given.tag),
    async take(given) {
        const end = Date.now() + 1000 * (given.seconds ?? 1), box = inbox[given.channel || 1];
        while (!box.length && Date.now() < end) await sleep(2);
        return shown(box.shift()); },
    get: async given => shown(await of(given).get(given.queue, {noAck: given.no_ack})),
    ack: async given => of(given).ack({fields: {deliveryTag: given.tag}}, given.multiple),
    reject: async given => of(given).reject({fields: {deliveryTag: given.tag}}, !!given.requeue),
    delete: async given => of(given).deleteQueue(given.queue),
    close: async () => connection.close(),
};
const shown = m => m && {tag: m.fields.deliveryTag, body: m.content.toString(), redelivered: m.fields.redelivered,
    reply_to: m.properties.replyTo, correlation_id: m.properties.correlationId};
(async () => { for await (const line of require('readline').createInterface({input: process.stdin})) {
    const [op, given] = JSON.parse(line);
    let answer; try { answer = {value: await ops[op](given) ?? null}; } catch (error) { answer = {error: String(error.message)}; }
    process.stdout.write(JSON.stringify(answer) + '\n'); }
process.exit(); })();
