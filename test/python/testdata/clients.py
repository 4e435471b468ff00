"""Asks the same of a cell in many ways: clients.py WAY HTTP_URL FLIGHT_URL FACTS."""

import http.client
import io
import json
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

import adbc_driver_flightsql.dbapi as dbapi
import adbc_driver_manager
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import flight

WAY, HTTP, FLIGHT, FACTS = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
QUERY = "SELECT path, bytes, ts, method, _offset FROM access WHERE status = 404"
PATIENCE = 60


def url(sql, **parameters):
    return HTTP + "/v1/query?" + urllib.parse.urlencode({"sql": sql, **parameters})


def ask(sql, **parameters):
    return urllib.request.urlopen(url(sql, **parameters), timeout=PATIENCE)


def same(got, want, what):
    assert got == want, f"{what}: {got!r}, want {want!r}"


def check(table):
    """The rows of QUERY as an Arrow table."""
    same(table.num_rows, FACTS["missing"], "rows")
    same(pc.sum(table["bytes"]).as_py(), FACTS["bytes"] or None, "sum of bytes")
    same(pc.count_distinct(table["path"]).as_py(), FACTS["paths"], "different paths")
    same(pc.min(table["path"]).as_py(), FACTS["first"], "first path")


def check_polars(frame):
    same(frame.height, FACTS["missing"], "rows")
    same(frame["bytes"].sum(), FACTS["bytes"], "sum of bytes")
    same(frame["path"].n_unique(), FACTS["paths"], "different paths")
    same(frame["path"].min(), FACTS["first"], "first path")


def arrow():
    table = pa.ipc.open_stream(ask(QUERY, format="arrow")).read_all()
    check(table)
    same(table.schema.field("ts").type, pa.timestamp("us", "UTC"), "type of ts")
    same(table.schema.field("method").type.value_type, pa.string(), "values of method")
    whole = pa.ipc.open_stream(ask("SELECT * FROM access", format="arrow")).read_all()
    same(whole.num_rows, FACTS["rows"], "all rows")
    request = urllib.request.Request(
        HTTP + "/v1/query",
        data=json.dumps({"sql": QUERY, "limit": 3}).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/vnd.apache.arrow.stream"},
    )
    same(pa.ipc.open_stream(urllib.request.urlopen(request, timeout=PATIENCE)).read_all().num_rows, 3, "rows of a POST")
    none = pa.ipc.open_stream(ask("SELECT path FROM access WHERE status = 999", format="arrow")).read_all()
    same((none.num_rows, none.schema.names), (0, ["path"]), "an empty answer")


def polars():
    check_polars(pl.read_ipc_stream(ask(QUERY, format="arrow")))
    check_polars(pl.read_ipc_stream(ask(QUERY, format="arrow").read()))
    same(pl.read_ipc_stream(ask("SELECT * FROM access", format="arrow")).height, FACTS["rows"], "all rows")


def polars_text():
    check_polars(pl.read_ndjson(ask(QUERY, format="jsonl").read()))
    check_polars(pl.read_csv(ask(QUERY, format="csv").read()))


def duckdb_over_arrow():
    answer = pa.ipc.open_stream(ask(QUERY, format="arrow")).read_all()
    rows = duckdb.sql("SELECT count(*), sum(bytes)::bigint, count(DISTINCT path), min(path) FROM answer").fetchall()
    same(rows, [(FACTS["missing"], FACTS["bytes"] or None, FACTS["paths"], FACTS["first"])], "DuckDB")
    stream = pa.ipc.open_stream(ask("SELECT status FROM access", format="arrow"))
    same(duckdb.sql("SELECT count(*) FROM stream").fetchall(), [(FACTS["rows"],)], "DuckDB over a stream")


def jsonl():
    answer = ask(QUERY)
    same(answer.headers.get_content_type(), "application/x-ndjson", "type")
    rows = [json.loads(line) for line in answer]
    same(len(rows), FACTS["missing"], "rows")
    same(sum(r["bytes"] or 0 for r in rows), FACTS["bytes"], "sum of bytes")
    same(list(rows[0]), ["path", "bytes", "ts", "method", "_offset"], "columns")


def csv():
    check(pyarrow.csv.read_csv(io.BytesIO(ask(QUERY, format="csv").read()), convert_options=pyarrow.csv.ConvertOptions(column_types={"bytes": pa.int64()})))


def refused(status, sql, **parameters):
    try:
        ask(sql, **parameters)
    except urllib.error.HTTPError as e:
        same(e.code, status, sql[:60])
        return json.load(e)["error"]
    raise AssertionError(f"{sql[:60]} is answered")


def errors():
    e = refused(400, "SELECT path,\n  pth FROM access")
    same((e["line"], e["column"]), (2, 3), "place")
    assert "path" in e["hint"] and "^" in e["caret"], e
    refused(400, "")
    refused(400, "SELECT")
    refused(400, "SELECT path FROM access", format="xml")
    assert "access" in refused(404, "SELECT * FROM acces")["hint"]
    refused(400, "SELECT path FROM access WHERE " + "(" * 10_000 + "true")
    request = urllib.request.Request(HTTP + "/v1/query", data=b"x" * (1 << 20), headers={"Content-Type": "application/sql"})
    try:
        urllib.request.urlopen(request, timeout=PATIENCE)
        raise AssertionError("a megabyte is a query")
    except urllib.error.HTTPError as e:
        same(e.code, 413, "a megabyte")


def running():
    """How many queries run."""
    metrics = urllib.request.urlopen(HTTP + "/metrics", timeout=PATIENCE).read().decode()
    return sum(int(float(l.split()[1])) for l in metrics.splitlines() if l.startswith("scribe_sqlserver_running_queries "))


def until(what, done):
    for _ in range(PATIENCE * 20):
        if done():
            return
        threading.Event().wait(0.05)
    raise AssertionError(what + " did not happen in time")


def follow():
    with ask("SELECT path FROM access", follow="1", **{"from": "earliest"}) as answer:
        n = 0
        while n < FACTS["rows"]:  # and blank lines between them
            n += len(answer.readline().strip()) > 0
        same(running(), 1, "running queries")
    until("the end of a query whose client has gone", lambda: running() == 0)
    with ask("SELECT path FROM access", follow="1", timeout="1s") as answer:
        same(answer.read().strip(), b"", "what comes from now on")


def gone():
    answer = ask("SELECT * FROM access WHERE status <> 0", follow="1", format="arrow", **{"from": "earliest"})
    answer.read(1000)
    answer.close()
    until("the end of a query whose client has gone", lambda: running() == 0)


def varint(n):
    out = b""
    while n > 0x7F:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def statement(sql):
    """CommandStatementQuery of Flight SQL, which pyarrow.flight has no call for."""

    def field(number, value):
        return varint(number << 3 | 2) + varint(len(value)) + value

    name = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return flight.FlightDescriptor.for_command(field(1, name) + field(2, field(1, sql.encode())))


def flight_sql():
    with flight.connect(FLIGHT) as client:
        info = client.get_flight_info(statement(QUERY))
        table = client.do_get(info.endpoints[0].ticket).read_all()
        check(table)
        same(info.schema, table.schema, "schema of the info")
        same(client.get_schema(statement(QUERY)).schema, table.schema, "schema alone")
        options = flight.FlightCallOptions(headers=[(b"scribe-limit", b"7")])
        info = client.get_flight_info(statement(QUERY), options)
        same(client.do_get(info.endpoints[0].ticket).read_all().num_rows, 7, "rows with a header")
        try:
            client.get_flight_info(statement("SELECT pth FROM access"))
            raise AssertionError("a wrong column is answered")
        except pa.ArrowInvalid as e:
            assert "^" in str(e) and "path" in str(e), e
        try:
            client.get_flight_info(statement("SELECT * FROM nothing"))
            raise AssertionError("a category that does not exist is answered")
        except KeyError as e:
            assert "nothing" in str(e), e


def flight_cancelled():
    with flight.connect(FLIGHT) as client:
        options = flight.FlightCallOptions(headers=[(b"scribe-follow", b"1"), (b"scribe-from", b"earliest")])
        info = client.get_flight_info(statement(QUERY), options)
        reader = client.do_get(info.endpoints[0].ticket)
        reader.read_chunk()
        same(running(), 1, "running queries")
        reader.cancel()
        until("the end of a cancelled query", lambda: running() == 0)


def adbc():
    with dbapi.connect(FLIGHT, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        check(cursor.fetch_arrow_table())
        cursor.execute("SELECT count(*) AS n, sum(bytes) AS s FROM access WHERE status = 404")
        (row,) = cursor.fetchall()
        same(tuple(int(v or 0) for v in row), (FACTS["missing"], FACTS["bytes"]), "aggregates")
        for values in ((404, "/"), ("404", "/")):
            cursor.execute("SELECT count(*) AS n FROM access WHERE status = ? AND starts_with(path, ?)", values)
            same(cursor.fetchall(), [(FACTS["missing"],)], "rows with values")
        # Without a value the columns of the answer are not known.
        cursor.execute("SELECT count(date_trunc(?, ts)) > 0 AS some FROM access", ("hour",))
        same(cursor.fetchall(), [(True,)], "a constant that is bound")
        cursor.execute("SHOW TABLES")
        same(("access",) in cursor.fetchall(), True, "tables")
        same(cursor.adbc_execute_schema(QUERY).names, ["path", "bytes", "ts", "method", "_offset"], "schema")
        check_polars(pl.read_database(QUERY, connection))
        for sql, word in (("SELECT pth FROM access", "path"), ("SELECT * FROM nothing", "nothing")):
            try:
                cursor.execute(sql)
                raise AssertionError(f"{sql} is answered")
            except adbc_driver_manager.Error as e:
                assert word in str(e), e
        try:
            cursor.adbc_ingest("access", pa.table({"path": ["/"]}), mode="append")
            raise AssertionError("rows are taken")
        except adbc_driver_manager.NotSupportedError:
            pass
    arguments = {"adbc.flight.sql.rpc.call_header.scribe-limit": "7"}
    with dbapi.connect(FLIGHT, db_kwargs=arguments, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        same(len(cursor.fetchall()), 7, "rows with a header")


def adbc_catalog():
    with dbapi.connect(FLIGHT, autocommit=True) as connection:
        same(connection.adbc_get_info()["vendor_name"], "Scribe", "vendor")
        same(connection.adbc_get_table_types(), ["TABLE"], "types")
        names = connection.adbc_get_table_schema("access").names
        assert names[:6] == ["ts", "client_ip", "method", "path", "status", "bytes"] and "_offset" in names, names
        (catalog,) = connection.adbc_get_objects(depth="all", table_name_filter="acc%").read_all().to_pylist()
        (table,) = catalog["catalog_db_schemas"][0]["db_schema_tables"]
        same((table["table_name"], [c["column_name"] for c in table["table_columns"]]), ("access", names), "objects")


def cut():
    for form in ("arrow", "csv", "jsonl"):
        try:
            n = len(ask("SELECT path FROM access", format=form).read())
            raise AssertionError(f"{n} bytes of {form} look like the whole answer")
        except http.client.IncompleteRead as e:
            same(b'"code":"limit"' in e.partial, form == "jsonl", "the reason in " + form)
    try:
        pa.ipc.open_stream(ask("SELECT path FROM access", format="arrow")).read_all()
        raise AssertionError("pyarrow takes a cut answer for a whole one")
    except http.client.IncompleteRead:
        pass
    with dbapi.connect(FLIGHT, autocommit=True) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SELECT path FROM access")
            cursor.fetch_arrow_table()
            raise AssertionError("ADBC takes a cut answer for a whole one")
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as e:
            assert "5000 rows" in str(e), e


WAYS = {
    "arrow": arrow,
    "polars": polars,
    "polars_text": polars_text,
    "duckdb": duckdb_over_arrow,
    "jsonl": jsonl,
    "csv": csv,
    "errors": errors,
    "follow": follow,
    "gone": gone,
    "flight": flight_sql,
    "flight_cancelled": flight_cancelled,
    "adbc": adbc,
    "adbc_catalog": adbc_catalog,
    "cut": cut,
}
WAYS[WAY]()
# Threads of Arrow's pools that still run abort an interpreter that ends, now and then (apache/arrow#34314). All has been checked here.
sys.stdout.flush()
os._exit(0)
