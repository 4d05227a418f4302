#!/usr/bin/env python3
"""ClickHouse's HTTP interface, as far as client libraries use it, over the engine of the PyPI package chdb, in this process. For tests only.
usage: front.py --dir DIR [--port 8123] [--pool 4] [--password X]    (port 0: any; prints "listening PORT"; ends with its standard input)
Not like a server: no keeper (ON CLUSTER, Replicated*), no users and quotas, answers are whole and not compressed, checksums of
compressed blocks are not verified, settings of a statement stay within a pooled session until its end."""
import argparse, email, email.policy, json, os, queue, re, struct, sys, threading, time, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit, parse_qsl
from chdb import session
try: import lz4.block
except ImportError: lz4 = None

NOT_SETTINGS = {"query", "database", "default_format", "compress", "decompress", "user", "password", "query_id",
                "session_id", "session_timeout", "session_check", "role", "quota_key", "buffer_size", "wait_end_of_query",
                "client_protocol_version", "enable_http_compression", "http_zlib_compression_level"}
STATUS = {60: 404, 81: 404, 47: 404, 50: 404, 46: 404, 194: 401, 516: 403, 497: 403, 62: 400, 36: 400, 6: 400, 27: 400, 33: 400,
          53: 400, 70: 400, 41: 400, 43: 400, 115: 404, 117: 400, 159: 408, 202: 503, 210: 503, 252: 503, 48: 501}
INSERT = re.compile(r"^(\s*INSERT\s+INTO\s.+?)\s+FORMAT\s+(\w+)\s*;?\s*$", re.I | re.S)
class Err(Exception):
    def __init__(self, code, text): self.code, self.text = code, text

def again(f, *a, **k):   # every statement of a Session has the same query_id; a straggler gives code 216
    for n in range(20):
        try: return f(*a, **k)
        except Exception as e:
            if "Code: 216." not in str(e) or n == 19: raise
            time.sleep(0.05)
def lit(v): return "'" + v.replace("\\", "\\\\").replace("'", "\\'") + "'"
def ident(v): return "`" + v.replace("`", "``") + "`"

def unframe(chunks):
    """decompress=1: ClickHouse blocks = 16 B CityHash128 (not checked here), method, u32 size incl. this header, u32 raw size."""
    buf = bytearray()
    for c in chunks:
        buf += c
        while len(buf) >= 25:
            method, size, raw = struct.unpack_from("<BII", buf, 16)
            if len(buf) < 16 + size: break
            data = bytes(buf[25:16 + size]); del buf[:16 + size]
            if method == 0x82:
                if lz4 is None: raise Err(432, "Code: 432. DB::Exception: front.py: no python lz4 module (UNKNOWN_CODEC)")
                yield lz4.block.decompress(data, uncompressed_size=raw)
            elif method == 0x02: yield data
            else: raise Err(432, f"Code: 432. DB::Exception: front.py: compression method {method:#x} (UNKNOWN_CODEC)")
    if buf: raise Err(33, "Code: 33. DB::Exception: Cannot read all data: truncated compressed block (CANNOT_READ_ALL_DATA)")

class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    def log_message(self, *a): pass

    def chunks(self):
        """The request body, Content-Length or chunked; raises ConnectionError when the client aborts."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while True:
                line = self.rfile.readline()
                if not line.strip(): raise ConnectionError("client went away inside a chunked body")
                n = int(line.split(b";")[0], 16)
                data = self.rfile.read(n) if n else b""
                if len(data) < n: raise ConnectionError("short chunk")
                self.rfile.readline()
                if n == 0: break
                yield data
        else:
            left = int(self.headers.get("Content-Length") or 0)
            while left:
                data = self.rfile.read(min(left, 1 << 18))
                if not data: raise ConnectionError("short body")
                left -= len(data)
                yield data
        self.body_done = True

    def reply(self, status, body=b"", **h):
        self.send_response(status)
        self.send_header("X-ClickHouse-Server-Display-Name", "chdb-front")
        for k, v in h.items(): self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        if not self.body_done: self.send_header("Connection", "close"); self.close_connection = True
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(body)
        self.wfile.flush()

    def do_GET(self):
        self.body_done = False
        url = urlsplit(self.path)
        p = dict(parse_qsl(url.query, keep_blank_values=True))
        qid, t0 = p.get("query_id") or str(uuid.uuid4()), time.time()
        try:
            if url.path in ("/ping", "/") and "query" not in p and self.command in ("GET", "HEAD"):
                b"".join(self.chunks()); return self.reply(200, b"Ok.\n", Content_Type="text/html; charset=UTF-8")
            pw = self.headers.get("X-ClickHouse-Key") or p.get("password", "")
            if ARGS.password and pw != ARGS.password:
                b"".join(self.chunks()); raise Err(516, "Code: 516. DB::Exception: default: Authentication failed (AUTHENTICATION_FAILED)")
            body = self.chunks()
            m = INSERT.match(p.get("query", ""))
            if m is None:
                raw = b"".join(unframe(body) if p.get("decompress") == "1" else body)
                if self.headers.get("Content-Type", "").startswith("multipart/form-data"):
                    msg = email.message_from_bytes(b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + raw, policy=email.policy.HTTP)
                    p.update((x.get_param("name", header="content-disposition"), x.get_payload(decode=True).decode()) for x in msg.iter_parts())
                    raw = b""
                sql = "\n".join(x for x in (p.get("query", ""), raw.decode("utf-8", "surrogateescape")) if x)
            params = {k[6:]: v for k, v in p.items() if k.startswith("param_")} or None
            sets = {k: v for k, v in p.items() if k not in NOT_SETTINGS and not k.startswith("param_")}
            s = POOL.get()
            try:
                if ARGS.log: print(qid, p.get("database"), sets, (m.group(0) if m else sql)[:300], file=sys.stderr, flush=True)
                again(s.query, "USE " + ident(p.get("database") or "default"))
                if sets: again(s.query, "SET " + ", ".join(f"{ident(k)} = {lit(v)}" for k, v in sets.items()))
                if m:   # rows are handed to the engine as they arrive; finish() commits, leaving the block without it cancels
                    with again(s.send_insert, m.group(1), m.group(2)) as ins:
                        for c in (unframe(body) if p.get("decompress") == "1" else body): ins.append(c)
                        r = ins.finish()
                    out, read, wrote = b"", (0, 0), (r.rows_written, r.bytes_written)
                else:
                    r = again(s.query, sql, p.get("default_format", "TabSeparated"), params=params)
                    out, read, wrote = r.bytes() or b"", (r.rows_read(), r.bytes_read()), (r.rows_written(), r.bytes_written())
            finally:
                try:
                    if sets: again(s.query, "SET " + ", ".join(f"{ident(k)} = DEFAULT" for k in sets))
                except Exception: pass
                POOL.put(s)
            ns = int((time.time() - t0) * 1e9)
            summary = json.dumps(dict(read_rows=str(read[0]), read_bytes=str(read[1]), written_rows=str(wrote[0]), written_bytes=str(wrote[1]),
                                      total_rows_to_read="0", result_rows="0", result_bytes=str(len(out)), elapsed_ns=str(ns)))
            self.reply(200, out, X_ClickHouse_Query_Id=qid, X_ClickHouse_Timezone=TZ, X_ClickHouse_Summary=summary,
                       X_ClickHouse_Format=p.get("default_format", "TabSeparated"), Content_Type="application/octet-stream")
        except ConnectionError:
            self.close_connection = True
        except Exception as e:
            text = e.text if isinstance(e, Err) else re.sub(r"^Streaming insert \w+ failed: ", "", str(e))
            if "DB::" not in text: text = f"Code: 1002. DB::Exception: front.py: {type(e).__name__}: {text} (UNKNOWN_EXCEPTION)"
            c = re.search(r"Code: (\d+)", text); code = int(c.group(1)) if c else 1002
            if not self.body_done:      # drain, so that the client reads the answer and not a reset
                try: [None for _ in self.chunks()]
                except Exception: pass
            self.reply(STATUS.get(code, 500), (text + f" (version {VERSION} (chdb))\n").encode(), X_ClickHouse_Exception_Code=str(code),
                       X_ClickHouse_Query_Id=qid, Content_Type="text/plain; charset=UTF-8")
    do_POST = do_HEAD = do_GET

a = argparse.ArgumentParser(); a.add_argument("--dir", required=True); a.add_argument("--port", type=int, default=8123)
a.add_argument("--pool", type=int, default=4); a.add_argument("--password", default=""); a.add_argument("--log", action="store_true")
ARGS = a.parse_args()
POOL = queue.LifoQueue()
for _ in range(ARGS.pool): POOL.put(session.Session(ARGS.dir))   # one engine per process; each Session = own USE/SET state and own lock
with_one = POOL.get(); VERSION = str(with_one.query("SELECT version()", "TSV")).strip(); TZ = str(with_one.query("SELECT timezone()", "TSV")).strip(); POOL.put(with_one)
srv = ThreadingHTTPServer(("127.0.0.1", ARGS.port), H); srv.daemon_threads = True
def until_the_test_ends(): sys.stdin.read(); os._exit(0)
threading.Thread(target=until_the_test_ends, daemon=True).start()
print("listening", srv.server_address[1], "chdb", VERSION, flush=True)
srv.serve_forever()
