# Bunny (Ruby) driven by lines of a script: see clients.py.
require "bunny"
require "json"

class Client
  def open(g)
    properties = Bunny::Session::DEFAULT_CLIENT_PROPERTIES.merge(g["name"] ? { connection_name: g["name"] } : {})
    if g["mute"]
      properties = properties.merge(capabilities: properties[:capabilities].reject { |name, _| name.to_s == "connection.blocked" })
    end
    options = { host: g["host"], port: g["port"], vhost: g["vhost"], user: g["user"], password: g["password"],
                heartbeat: g["heartbeat"], client_properties: properties, automatically_recover: false,
                continuation_timeout: 30_000, log_level: Logger::FATAL, threaded: true, read_timeout: 100 }
    versions = { "tlsv1" => :TLSv1, "tlsv1.1" => :TLSv1_1 }
    options.merge!(tls: true, verify_peer: false, tls_silence_warnings: true, tls_protocol: versions[g["tls"]]) if g["tls"]
    options[:channel_max] = g["channel_max"] if g["channel_max"]
    @connection = Bunny.new(options)
    @connection.start
    @channels, @inbox = {}, Hash.new { |all, n| all[n] = Queue.new }
    nil
  end

  def of(g) = @channels[g["channel"] || 1]

  def channel_open(g)
    made = @connection.create_channel
    made.confirm_select if g["confirms"]
    made.on_error { |*| }
    @channels[g["channel"] || 1] = made
    nil
  end

  def channel_close(g) = (of(g).close; nil)

  def declare(g)
    of(g).queue_declare(g["queue"], passive: g["passive"], durable: g.fetch("durable", true), exclusive: g["exclusive"],
                        auto_delete: g["auto_delete"], arguments: g["arguments"] || {})
    nil
  end

  def exchange(g) = (of(g).exchange_declare(g["exchange"], g["kind"] || "direct", durable: true, arguments: g["arguments"] || {}); nil)
  def bind(g) = (of(g).queue_bind(g["queue"], g["exchange"], routing_key: g["key"]); nil)
  def unbind(g) = (of(g).queue_unbind(g["queue"], g["exchange"], routing_key: g["key"]); nil)

  def publish(g)
    p = g["properties"] || {}
    options = { mandatory: g["mandatory"], message_id: p["message_id"], expiration: p["expiration"],
                reply_to: p["reply_to"], correlation_id: p["correlation_id"], persistent: true }.compact
    (g["repeat"] || 1).times { of(g).basic_publish(g["body"] || "x", g["exchange"] || "", g["key"], options) }
    nil
  end

  def wait(g) = of(g).wait_for_confirms
  def transact(g) = (of(g).tx_select; nil)
  def commit(g) = (of(g).tx_commit; nil)
  def qos(g) = (of(g).basic_qos(g["count"]); nil)

  def consume(g)
    arguments = g["priority"] ? { "x-priority" => g["priority"] } : {}
    consumer = Bunny::Consumer.new(of(g), g["queue"], g["tag"] || of(g).generate_consumer_tag, g["no_ack"] || false,
                                   g["exclusive"] || false, arguments)
    box = @inbox[g["channel"] || 1]
    consumer.on_delivery { |info, properties, body| box << shown(info, properties, body) }
    of(g).basic_consume_with(consumer)
    consumer.consumer_tag
  end

  def cancel(g) = (of(g).basic_cancel(g["tag"]); nil)

  def take(g)
    box, till = @inbox[g["channel"] || 1], Time.now + (g["seconds"] || 1)
    sleep 0.002 while box.empty? && Time.now < till
    box.empty? ? nil : box.pop
  end

  def get(g)
    info, properties, body = of(g).basic_get(g["queue"], manual_ack: !g["no_ack"])
    info && shown(info, properties, body)
  end

  def ack(g) = (of(g).basic_ack(g["tag"], g["multiple"] || false); nil)
  def reject(g) = (of(g).basic_reject(g["tag"], g["requeue"] || false); nil)
  def delete(g) = (of(g).queue_delete(g["queue"]); nil)
  def close(_) = (@connection.close; nil)

  def shown(info, properties, body)
    { tag: info.delivery_tag.to_i, body: body, redelivered: info.redelivered,
      reply_to: properties[:reply_to], correlation_id: properties[:correlation_id] }
  end
end

$stdout.sync = true
client = Client.new
while (line = $stdin.gets)
  op, given = JSON.parse(line)
  answer = begin
    { value: client.public_send(op, given) }
  rescue StandardError => e
    { error: e.message }
  end
  puts answer.to_json
end
exit!
