-- POST the same body on every connection. wrk formats the request once, where `request` is not defined.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Content-Type"] = "application/json"
local token = os.getenv("BENCH_TOKEN")
if token and token ~= "" then
  wrk.headers["Authorization"] = "Bearer " .. token
end

-- Or one that counts up: these digits become a number of as many hexadecimal digits.
local counted = os.getenv("BENCH_COUNTED")
if counted and counted ~= "" then
  -- A million for each second of the clock: no run begins where another has been. Needs a single thread.
  local count = os.time() * 1000000
  local form = "%0" .. #counted .. "x"
  local before, after

  function init(args)
    local whole = wrk.format()
    local first, last = whole:find(counted, 1, true)
    before, after = whole:sub(1, first - 1), whole:sub(last + 1)
  end

  function request()
    count = count + 1
    return before .. string.format(form, count) .. after
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"microseconds":%d,"bytes":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,' ..
    '"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99),
    latency.max,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
