"""The servers that the other tests rely on do what those of the world do."""

import http.client
import urllib.error
import urllib.request
from datetime import timedelta

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from object_stores import BUCKET, Nginx, Proxy, http_server


def store_of(server, endpoint=None, **options):
    config = server.options(endpoint)
    client = {"allow_http": config.pop("allow_http") == "true"}
    return from_url(f"s3://{BUCKET}", config=config, client_options=client, **options)


def test_s3_keeps_objects_and_refuses_a_put_whose_condition_fails(s3):
    store = store_of(s3)
    made = obstore.put(store, "conditional", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "conditional", b"second", mode="create")
    obstore.put(store, "conditional", b"third", mode={"e_tag": made["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, "conditional", b"fourth", mode={"e_tag": made["e_tag"]})
    assert bytes(obstore.get(store, "conditional").bytes()) == b"third"


@pytest.mark.parametrize("server", [http_server, Nginx])
def test_http_serves_the_range_that_is_asked_for(server, tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    served = server(tmp_path)
    try:
        store = from_url(served.endpoint, client_options={"allow_http": True})
        assert obstore.head(store, "file")["size"] == 100
        found = obstore.get_ranges(
            store, "file", starts=[3, 90], lengths=[4, 10], coalesce=0
        )
        assert list(map(bytes, found)) == [bytes(range(3, 7)), bytes(range(90, 100))]
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "other")
    finally:
        served.stop()


@pytest.fixture
def proxied():
    made = []

    def make(upstream, **options):
        made.append(Proxy(upstream, **options))
        return made[-1]

    yield make
    for proxy in made:
        proxy.stop()


def test_an_environment_gives_the_credentials(s3, monkeypatch):
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    store = from_url(f"s3://{BUCKET}")
    obstore.put(store, "by environment", b"content")
    assert bytes(obstore.get(store, "by environment").bytes()) == b"content"


@pytest.mark.parametrize("fault", ["500", "503", "reset", "cut", "delay", "changed"])
def test_a_proxy_does_what_it_is_told_to(tmp_path, proxied, fault):
    content = bytes(range(256)) * 64
    (tmp_path / "faulty").write_bytes(content)
    upstream = http_server(tmp_path)
    proxy = proxied(upstream.endpoint, rate=1.0, faults=(fault,))

    def get(server=proxy):
        with urllib.request.urlopen(f"{server.endpoint}/faulty") as answer:
            return answer.read(), answer.headers["ETag"]

    if fault in ("500", "503"):
        with pytest.raises(urllib.error.HTTPError, match=fault):
            get()
    elif fault == "reset":
        with pytest.raises(ConnectionError):
            get()
    elif fault == "cut":
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            get()
    elif fault == "changed":
        found, tag = get()
        assert found == bytes(255 - byte for byte in content)
        assert tag != get(upstream)[1]
    else:
        assert get()[0] == content
    assert [each.kind for each in proxy.met] == [fault]
    upstream.stop()


def test_the_faults_of_a_proxy_are_those_of_its_seed(proxied):
    def met(seed):
        proxy = proxied("http://nowhere", rate=0.3, faults=("delay", "503"), seed=seed)
        return [proxy.fault("GET", "/", None) for _ in range(50)]

    assert met(1) == met(1) != met(2)


def test_a_client_tries_again_until_a_flaky_network_gives_its_answer(s3, proxied):
    proxy = proxied(s3.endpoint, rate=0.3, seed=3)
    backoff = {"init_backoff": timedelta(milliseconds=1), "base": 2}
    backoff["max_backoff"] = timedelta(milliseconds=10)
    retry = {"max_retries": 20, "backoff": backoff}
    store = store_of(s3, proxy.endpoint, retry_config=retry)
    for number in range(20):
        obstore.put(store, f"flaky/{number}", bytes([number]) * 1000)
    for number in range(20):
        assert _got(store, f"flaky/{number}") == bytes([number]) * 1000
    assert proxy.met


def _got(store, name):
    for _ in range(20):
        try:
            return bytes(obstore.get(store, name).bytes())
        except (BaseError, OSError):
            continue
    raise AssertionError
