"""Places in object stores: their URLs, their objects, and what is said when one fails."""

import os
import pickle

import pytest

from separate_process import check_freshly
from tensordict.storage.remote import Place, is_remote, place_of
from tensordict.storage.remote.errors import explained
from tensordict.storage.remote.options import split_url

obstore = pytest.importorskip("obstore")


@pytest.fixture
def place(request):
    return place_of(f"memory://places/{request.node.name}")


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3a://bucket", "s3a://bucket", ""),
        ("gcs://bucket/a/", "gs://bucket", "a"),
        ("https://a.org/x/y.tdz", "https://a.org", "x/y.tdz"),
        ("https://me.blob.core.windows.net/box/a", "https://me.blob.core.windows.net/box", "a"),
        ("https://s3.eu-west-1.amazonaws.com/b/a", "https://s3.eu-west-1.amazonaws.com/b", "a"),
        ("https://b.s3.eu-west-1.amazonaws.com/a", "https://b.s3.eu-west-1.amazonaws.com", "a"),
        ("memory://a/b", "memory://", "a/b"),
        ("memory:///a/b", "memory://", "a/b"),
    ],
)  # fmt: skip
def test_a_url_is_split_into_bucket_and_path(url, base, root):
    assert split_url(url) == (base, root)
    assert is_remote(url)


@pytest.mark.parametrize(
    "path", ["/data/a", "a", b"a", "file:///a", "hf://a/b", None, 3]
)
def test_other_paths_are_not_remote(path):
    assert not is_remote(path)


def test_an_object_is_written_read_listed_and_deleted(place):
    tag = place.put("a/b", b"12345")
    place.put("c", b"1")
    assert place.get("a/b") == b"12345"
    assert place.head("a/b")[:3] == ("a/b", 5, tag)
    assert place.get_with_tag("a/b") == (b"12345", place.head("a/b"))
    assert sorted(found.name for found in place.list()) == ["a/b", "c"]
    assert [found.name for found in place.list("a")] == ["a/b"]
    assert (place / "a" / "b").get() == b"12345"
    assert (place / "a" / "b").parent.root == (place / "a").root
    place.delete(["a/b"])
    assert not place.exists("a/b")
    assert place.exists("c")


def test_the_store_in_memory_is_one(place):
    place.put("a", b"1")
    assert place_of(place.url).get("a") == b"1"
    assert place_of(place) is place


def test_a_store_with_a_prefix_is_a_place(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    store = obstore.store.LocalStore(tmp_path)
    assert is_remote(store)
    place = place_of(store)
    assert place.get("a") == b"1"
    assert pickle.loads(pickle.dumps(place)).get("a") == b"1"
    with pytest.raises(ValueError, match="is a store already"):
        place_of(store, {"aws_region": "a"})


def test_a_place_of_a_url_is_pickled_with_its_options():
    place = place_of("s3://bucket/a", {"aws_region": "eu-west-1", "allow_http": True})
    again = pickle.loads(pickle.dumps(place / "b"))
    assert (again.url, again.root) == ("s3://bucket/a/b", "a/b")
    assert again.store.config["region"] == "eu-west-1"
    assert again.store.client_options["allow_http"]


def test_a_place_in_memory_is_not_sent_to_others(place):
    with pytest.raises(TypeError, match="memory is its own"):
        pickle.dumps(place)


@pytest.mark.parametrize(
    "options",
    [
        {"aws_region": "a", "nonsense": 1},
        {"client_options": {"nonsense": 1}},
    ],
)
def test_an_unknown_option_is_an_error_that_names_it(options):
    with pytest.raises(ValueError, match=r"storage_options of 's3://b'.*"):
        place_of("s3://b", options)


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "https://"])
def test_a_url_without_a_bucket_is_refused(url):
    with pytest.raises(ValueError, match="names no bucket"):
        place_of(url)


def test_a_missing_object_is_named(place):
    for call in (place.get, place.head, place.get_with_tag):
        with pytest.raises(FileNotFoundError, match=f"no object {place.url}/a: check"):
            call("a")


def test_conditional_writes_refuse(place):
    tag = place.put("a", b"1", mode="create")
    with pytest.raises(FileExistsError, match=f"an object {place.url}/a already"):
        place.put("a", b"2", mode="create")
    place.put("a", b"2", mode={"e_tag": tag})
    with pytest.raises(RuntimeError, match=f"{place.url}/a changed"):
        place.put("a", b"3", mode={"e_tag": tag})
    assert place.get("a") == b"2"


def error_of(text, name="GenericError"):
    return getattr(obstore.exceptions, name)(text)


def test_errors_say_in_a_sentence_what_to_do():
    denied = explained(
        error_of(
            "The operation lacked the necessary privileges: Error performing GET "
            "http://h/b/a in 2ms - Server returned non-2xx status code: 403 Forbidden: "
            "<Error><Code>SignatureDoesNotMatch</Code></Error>",
            "PermissionDeniedError",
        ),
        "s3://b/a",
    )
    assert isinstance(denied, PermissionError)
    assert "s3://b/a was denied (status 403 Forbidden: SignatureDoesNotMatch)" in str(
        denied
    )
    nobody = explained(
        error_of(
            "Error performing PUT http://169.254.169.254/latest/api/token in 1ms, after 2 "
            "retries, max_retries: 2, retry_timeout: 180s  - HTTP error: error sending request"
        ),
        "s3://b/a",
    )
    assert "was denied (no credentials were found): check the credentials" in str(
        nobody
    )
    region = explained(
        error_of(
            "Error performing GET http://h/b/a in 2ms - Received redirect without LOCATION, "
            "this normally indicates an incorrectly configured region"
        ),
        "s3://b/a",
    )
    assert "in another region" in str(region)
    assert "'aws_region'" in str(region)
    failed = explained(
        error_of(
            "Error performing GET http://h/b/a in 2ms, after 3 retries, max_retries: 3, "
            "retry_timeout: 180s  - Server returned non-2xx status code: 503 Service "
            "Unavailable: "
        ),
        "s3://b/a",
        (10, 20),
    )
    assert isinstance(failed, OSError)
    assert (
        "s3://b/a, bytes 10 to 19: status 503 Service Unavailable, after 4 tries"
        in str(failed)
    )


def test_without_the_library_an_error_says_what_to_install():
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from tensordict.storage.remote import place_of\n"
        "try: place_of('s3://bucket/a')\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install tensordict-rs[remote]" in check_freshly(code)


def test_the_child_of_a_fork_does_not_see_the_memory_of_its_parent(place):
    place.put("a", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            place.get("a")
            said = "nothing"
        except BaseException as error:  # noqa: BLE001 - the child ends here
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"whose memory is its own" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)


def test_a_place_is_shown_by_its_url():
    assert str(Place("s3://b/a", "a")) == "s3://b/a"
