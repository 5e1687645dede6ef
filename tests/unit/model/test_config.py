from __future__ import annotations

from pathlib import Path

import pytest

from sandq.model.auto_create import AutoCreate
from sandq.model.config import Address, NodeConfig, environment_names, load_config
from sandq.model.config_schema import is_loopback
from sandq.model.errors import ConfigError
from sandq.model.limits import DEFAULT, Limits

GOOD = """
node: {id: node7, data_dir: ./data/n7, advertise_host: broker7.example, zone: b}
listen: {client: "0.0.0.0:7170", http: "[::1]:2108", peer: 127.0.0.1:0, gossip: 127.0.0.1:0}
cluster:
  name: prod
  bootstrap: no
  seeds: [127.0.0.1:9901, "[::1]:9902", host.example:9903]
  secret_file: ./secret
  reassign_after: 10m
storage: {segment_bytes: 16MiB, checkpoint_bytes: 1048576, checkpoint_interval: 1m30s}
clock: {max_drift: 250ms, slew_ppm: 100}
limits: {connections: 50, message_bytes: 1 MiB}
delivery: {lease_ahead: 0}
security: {insecure: true}
shutdown_grace: 1.5
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def written(text: str | bytes) -> Path:
        path = tmp_path / "bad.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def mistakes(path: Path | None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ or {})
    lines = caught.value.message.split("\n")
    assert lines == caught.value.details["mistakes"]
    return [line.replace(str(path), "bad.yaml") for line in lines]


def test_without_a_file() -> None:
    config = load_config(None, {"PATH": "/bin", "SANDCTL_SERVERS": "x"})
    assert (config.node.id, config.node.data_dir) == ("node1", Path("sandq-data"))
    assert (config.cluster.bootstrap, config.cluster.seeds, config.cluster.membership) == (True, [], "gossip")
    assert [str(address) for address in (config.listen.client, config.listen.http)] == [
        "127.0.0.1:7170",
        "127.0.0.1:2108",
    ]
    assert [str(address) for address in (config.listen.peer, config.listen.gossip)] == [
        "127.0.0.1:9190",
        "127.0.0.1:9900",
    ]
    assert config.limits is DEFAULT or config.limits == DEFAULT
    assert (config.delivery.lease_ahead_ms, config.shutdown_grace_ms, config.cluster.reassign_after_ms) == (
        5,
        30_000,
        300_000,
    )
    assert (config.clock.max_drift_ms, config.clock.slew_ppm) == (500, 500)
    assert (config.storage.segment_bytes, config.storage.checkpoint_interval_ms) == (64 << 20, 60_000)
    assert config.advertise_host == "127.0.0.1"


def test_complete_file_is_loaded(write) -> None:  # type: ignore[no-untyped-def]
    config = load_config(write(GOOD), {})
    assert (config.node.id, config.node.zone, config.advertise_host) == ("node7", "b", "broker7.example")
    assert config.listen.http == Address("::1", 2108)
    assert str(config.listen.http) == "[::1]:2108"
    assert config.cluster.seeds == [("127.0.0.1", 9901), ("::1", 9902), ("host.example", 9903)]
    assert config.cluster.secret_file == Path("secret")
    assert (config.storage.segment_bytes, config.storage.checkpoint_interval_ms) == (16 << 20, 90_000)
    assert config.limits == Limits(connections=50, message_bytes=1 << 20)
    assert (config.delivery.lease_ahead_ms, config.shutdown_grace_ms) == (0, 1500)
    assert load_config(str(write(GOOD)), {}) == config


def test_peers_beyond_this_machine_need_a_secret(write) -> None:  # type: ignore[no-untyped-def]
    for host in ("127.0.0.1", "127.1.2.3", "[::1]", "localhost"):
        load_config(write(f"{FOUND}listen: {{peer: '{host}:1'}}"), {})
    for host in ("0.0.0.0", "[::]", "10.0.0.1", "node1.example"):
        text = f"listen: {{peer: '{host}:1'}}\ncluster: {{bootstrap: true"
        (found,) = mistakes(write(text + "}"))
        assert found.startswith(
            f"bad.yaml:2:10: cluster: listen.peer on {host.strip('[]')} needs secret_file, the secret"
        )
        assert found.startswith("bad.yaml:2:10") and len(mistakes(write(text + ", secret_file: ./secret}"))) == 1
        load_config(write(text + ", secret_file: ./secret}\nsecurity: {insecure: true}"), {})


TLS = "tls: {cert_file: c, key_file: k, ca_file: a"
OPEN = "listen: {client: '10.0.0.1:1', http: '10.0.0.1:2', peer: '10.0.0.1:3', gossip: '10.0.0.1:4'}\n" + (
    "cluster: {bootstrap: true, secret_file: s}\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            OPEN,
            [
                "listen.client on 10.0.0.1 without TLS (tls.client: require) and authentication "
                "(security.authentication: require)",
                "listen.http on 10.0.0.1 without TLS (tls.http: require) and authentication "
                "(security.authentication: require)",
                "listen.peer on 10.0.0.1 without TLS (tls.peer: require)",
            ],
        ),
        (
            OPEN + TLS + "}\nsecurity: {authentication: accept}",
            [
                "listen.client on 10.0.0.1 without authentication (security.authentication: require)",
                "listen.http on 10.0.0.1 without authentication (security.authentication: require)",
            ],
        ),
        (
            OPEN + TLS + ", client: accept, peer: send}\nsecurity: {authentication: require}",
            [
                "listen.client on 10.0.0.1 without TLS (tls.client: require)",
                "listen.peer on 10.0.0.1 without TLS (tls.peer: require)",
            ],
        ),
        (OPEN + TLS + "}\nsecurity: {authentication: require}", []),
        ("listen: {client: 'localhost:1', http: '[::1]:2'}\ncluster: {bootstrap: true}", []),
    ],
)
# type: ignore[no-untyped-def]
def test_a_node_that_others_reach_is_secured_or_says_that_it_is_not(write, text: str, says: list[str]) -> None:
    found = mistakes(write(text)) if says else []
    assert len(found) == bool(says)
    for line in found:
        assert "; ".join(says) in line and "security.insecure: true" in line
    insecure = text.replace("authentication:", "insecure: true, authentication:")
    config = load_config(write(insecure if "security" in text else text + "\nsecurity: {insecure: true}"), {})
    assert config.exposed == says


@pytest.mark.parametrize("word", ["y", "T", "on", "1", "TRUE", "Yes"])
def test_gossip_encryption_setting_uses_the_boolean_words(write, word: str) -> None:  # type: ignore[no-untyped-def]
    assert load_config(write(FOUND), {"SANDQ_GOSSIP__ENCRYPT": word}).gossip.encrypt is True
    opposite = {"y": "n", "T": "F", "on": "off", "1": "0", "TRUE": "FALSE", "Yes": "No"}[word]
    assert load_config(write(FOUND), {"SANDQ_GOSSIP__ENCRYPT": opposite}).gossip.encrypt is False


def test_gossip_in_the_clear_beyond_this_machine_is_insecure(write) -> None:  # type: ignore[no-untyped-def]
    text = FOUND + "listen: {gossip: '10.0.0.1:4'}\ngossip: {encrypt: false}\n"
    (found,) = mistakes(write(text))
    assert "listen.gossip on 10.0.0.1 without encryption (gossip.encrypt: true)" in found
    assert load_config(write(text + "security: {insecure: true}"), {}).exposed


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::1%lo", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_is_loopback_recognizes_local_hosts(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_static_membership(write) -> None:  # type: ignore[no-untyped-def]
    peer = "{id: node2, peer: 127.0.0.1:9191, client: 127.0.0.1:7171, http: 127.0.0.1:2109}"
    config = load_config(write(f"cluster: {{membership: static, peers: [{peer}]}}"), {})
    assert [(peer.id, peer.peer.port) for peer in config.cluster.peers] == [("node2", 9191)]


def test_environment_overrides_the_file(write) -> None:  # type: ignore[no-untyped-def]
    environ = {
        "SANDQ_NODE__ID": "node8",
        "SANDQ_CLUSTER__BOOTSTRAP": "true",
        "SANDQ_CLUSTER__SEEDS": "a:1, b:2",
        "SANDQ_LIMITS__CONNECTIONS": "99",
        "SANDQ_LIMITS__FRAME_BYTES": "48MiB",
        "SANDQ_SHUTDOWN_GRACE": "2m",
        "SANDQ_NODE__ZONE": "1",
        "SANDQ_NODE__DATA_DIR": "[x]",
    }
    config = load_config(write(GOOD), environ)
    assert (config.node.id, config.node.zone, config.node.data_dir) == ("node8", "1", Path("[x]"))
    assert (config.cluster.bootstrap, config.cluster.seeds) == (True, [("a", 1), ("b", 2)])
    assert config.limits == Limits(connections=99, message_bytes=1 << 20, frame_bytes=48 << 20)
    assert config.shutdown_grace_ms == 120_000
    assert config.clock.max_drift_ms == 250  # the value of the file


def test_lists_in_the_environment() -> None:
    config = load_config(None, {"SANDQ_CLUSTER__SEEDS": "[a:1, b:2]"})
    assert config.cluster.seeds == [("a", 1), ("b", 2)]
    assert not config.cluster.bootstrap  # the node joins, because a node alone would be a second cluster
    peers = "[{id: node2, peer: a:1, client: a:2, http: a:3}]"
    environ = {"SANDQ_CLUSTER__MEMBERSHIP": "static", "SANDQ_CLUSTER__PEERS": peers}
    assert [peer.id for peer in load_config(None, environ).cluster.peers] == ["node2"]


def test_every_key_has_its_variable() -> None:
    names = environment_names()
    assert {"SANDQ_NODE__ID", "SANDQ_LISTEN__GOSSIP", "SANDQ_CLUSTER__REASSIGN_AFTER"} <= set(names)
    assert {"SANDQ_LIMITS__CONNECTIONS", "SANDQ_SHUTDOWN_GRACE", "SANDQ_DELIVERY__LEASE_AHEAD"} <= set(names)
    assert len(names) == len(set(names)) == 96 + len(DEFAULT.__dataclass_fields__)


def test_mistakes_in_the_environment_are_reported() -> None:
    environ = {
        "SANDQ_NODE__IDD": "x",
        "SANDQ_CLOCK__MAX_DRIFT": "soon",
        "SANDQ_ZZZZ": "1",
        "SANDQ_": "",
        "SANDQ_NODE": "1",
        "SANDQ_HTTP__WORKERS": "1",
    }
    environ |= {"SANDQ_CLUSTER__SEEDS": "[a:1"}
    assert mistakes(None, environ) == [
        "environment SANDQ_: no such setting; did you mean SANDQ_TLS__SQL?",
        "environment SANDQ_CLOCK__MAX_DRIFT: clock.max_drift: 'soon' is not a duration: seconds, or text"
        ' like "90s", "5m", "1h30m", "250ms" is expected',
        "environment SANDQ_CLUSTER__SEEDS: cluster.seeds: while parsing a flow sequence expected ',' or ']',"
        " but got '<stream end>'",
        f"environment SANDQ_HTTP__WORKERS: {NO_WORKERS}",
        "environment SANDQ_NODE: no such setting; did you mean SANDQ_NODE__ID?",
        "environment SANDQ_NODE__IDD: no such setting; did you mean SANDQ_NODE__ID?",
        "environment SANDQ_ZZZZ: no such setting",
    ]


BAD = """\
node:
  id: "bad name"
  idd: x
  zone: 5
  id: node1
listen: {client: 127.0.0.1:7170, http: "127.0.0.1:7170", peer: nonsense, gosip: "h:1"}
cluster:
  seeds: [a:1, b, c:0]
  membership: static
  peers: [{id: node2, peer: a:1, client: a:2, http: a:3, hostt: 1}, {id: node2}]
  reassign_after: 5 minutes
  bootstrap: maybe
limits: {message_bytes: 64MiB, foo: 1, connections: true, batch_messages: 70000}
storage: 7
delivery:
    lease_ahead: 51ms
metrics: {}
"""


def test_every_mistake_has_its_path(write) -> None:  # type: ignore[no-untyped-def]
    rule = "the rule: 1 to 249 of A-Z a-z 0-9 . _ - and the first one a letter or a digit"
    assert mistakes(write(BAD), {"SANDQ_NODE__I": "x"}) == [
        "environment SANDQ_NODE__I: no such setting; did you mean SANDQ_NODE__ID?",
        f"bad.yaml:2:7: node.id: node name 'bad name' is not allowed; {rule}",
        "bad.yaml:3:3: node.idd: unknown key; did you mean 'id'?",
        f"bad.yaml:4:9: node.zone: zone name must be a string, not int; {rule}",
        "bad.yaml:5:3: node.id: the key is there twice, first in line 2",
        "bad.yaml:6:40: listen.http: 127.0.0.1:7170 is the address of listen.client already",
        'bad.yaml:6:64: listen.peer: \'nonsense\' is not an address: "host:port" or "[IPv6]:port" is expected',
        "bad.yaml:6:74: listen.gosip: unknown key; did you mean 'gossip'?",
        'bad.yaml:8:16: cluster.seeds.1: \'b\' is not an address: "host:port" or "[IPv6]:port" is expected',
        "bad.yaml:8:19: cluster.seeds.2: c:0 has no port to connect to",
        "bad.yaml:10:58: cluster.peers.0.hostt: unknown key; did you mean 'http'?",
        "bad.yaml:10:69: cluster.peers.1.client: is required",
        "bad.yaml:10:69: cluster.peers.1.http: is required",
        "bad.yaml:10:69: cluster.peers.1.peer: is required",
        "bad.yaml:11:19: cluster.reassign_after: '5 minutes' is not a duration: it is written \"5m\"",
        "bad.yaml:12:14: cluster.bootstrap: 'maybe' should be a valid boolean, unable to interpret input",
        "bad.yaml:13:9: limits.batch_bytes: 16777216 is less than message_bytes, which must fit in it",
        "bad.yaml:13:32: limits.foo: unknown key",
        "bad.yaml:13:53: limits.connections: True is not a whole number",
        "bad.yaml:13:75: limits.batch_messages: 70000 is not within 1 to 65536",
        "bad.yaml:14:10: storage: a mapping of keys is expected, not 7",
        "bad.yaml:16:18: delivery.lease_ahead: 51ms is not within 0s to 50ms",
        "bad.yaml:17:1: metrics: unknown key; known are audit, auto_create_topics, backup, clock, cluster, delivery, "
        "gossip, health, http, jwt, limits, listen, node, push, security, serf, shutdown_grace, slo, sql, storage, tls",
    ]


def test_a_file_without_a_cluster_founds_one(write) -> None:  # type: ignore[no-untyped-def]
    for text in ("", "listen: {sql: '127.0.0.1:7306'}\n"):
        assert load_config(write(text), {}).cluster.bootstrap
    joining = load_config(write(""), {"SANDQ_CLUSTER__SEEDS": "127.0.0.1:9900", "SANDQ_CLUSTER__NAME": "c"})
    assert not joining.cluster.bootstrap


NO_WAY = (
    "cluster.bootstrap: neither bootstrap nor seeds: "
    "say bootstrap: true to found a cluster, or name the seeds of one to join"
)
FOUND = "cluster: {bootstrap: true}\n"
NO_WORKERS = "removed: a node always serves HTTP from a process that it starts; delete the key"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node: {id: n}\ncluster:\n", [f"bad.yaml:2:9: {NO_WAY}"]),
        ("cluster: {name: c}", [f"bad.yaml:1:10: {NO_WAY}"]),
        ("cluster: {membership: static}", [f"bad.yaml:1:10: {NO_WAY.replace('seeds', 'peers')}"]),
        (f"{FOUND}http: {{workers: 1}}", [f"bad.yaml:2:8: http.workers: {NO_WORKERS}"]),
        ("- 1", ["bad.yaml:1:1: a mapping of sections is expected"]),
        ("words", ["bad.yaml:1:1: a mapping of sections is expected"]),
        ("cluster: 5", ["bad.yaml:1:10: cluster: a mapping of keys is expected, not 5"]),
        ("a: [b", ["bad.yaml:1:6: while parsing a flow sequence expected ',' or ']', but got '<stream end>'"]),
        ("a:\n\tb: 1", ["bad.yaml:2:1: while scanning for the next token found character '\\t' that cannot start"]),
        ("a: 1\n---\nb: 2", ["bad.yaml:2:1: expected a single document in the stream but found another document"]),
        (
            "cluster: {bootstrap: true, name: !!python/object/apply:os.system ls}",
            ["bad.yaml:1:34: cluster.name: 'ls': could not determine a constructor for the tag"],
        ),
        (
            "cluster: {bootstrap: true, name: 2001-99-99}",
            ["bad.yaml:1:34: cluster.name: '2001-99-99': month must be in 1..12"],
        ),
        ("cluster: {bootstrap: true}\n5: 6", ["bad.yaml:2:1: a key must be text; put quotes around it"]),
        (
            "cluster: {membership: static, seeds: [a:1], bootstrap: true}",
            ["bad.yaml:1:38: cluster.seeds: seeds are of membership: gossip; with static, name the peers"],
        ),
        (
            "cluster: {peers: [{id: a, peer: a:1, client: a:2, http: a:3}], bootstrap: true}",
            ["bad.yaml:1:18: cluster.peers: peers are of membership: static; with gossip, name the seeds"],
        ),
        (
            "cluster: {membership: static, peers: [{id: node1, peer: a:1, client: a:2, http: a:3}]}",
            ["bad.yaml:1:10: cluster: peers are the other nodes, and node1 is this one"],
        ),
        (
            FOUND + "listen: {client: 0.0.0.0:1}",
            ["bad.yaml:2:9: listen: listening on 0.0.0.0 needs node.advertise_host, the host that others shall"],
        ),
        (
            FOUND + "limits: {frame_bytes: 1}",
            ["bad.yaml:2:23: limits.frame_bytes: 1 is less than batch_bytes, which must fit in it"],
        ),
        (
            FOUND + "limits: {frame_bytes: 49MiB}",
            ["bad.yaml:2:23: limits.frame_bytes: 51380224 is not within 1 to 50331648"],
        ),
        (
            FOUND + "storage: {segment_bytes: 64mb}",
            ["bad.yaml:2:26: storage.segment_bytes: '64mb' is not a size: bytes, or text like \"64MiB\" is expected"],
        ),
    ],
)
def test_a_mistake(write, text: str, expected: list[str]) -> None:  # type: ignore[no-untyped-def]
    found = mistakes(write(text))
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start) or (start.endswith("the tag") and "could not determine a constructor" in line), (
            line
        )


@pytest.mark.parametrize(
    "text",
    [
        "cluster: &a [*a]",
        "cluster: &a {bootstrap: *a}",
        "a: &a [1]\nb: [*a, *a]",
        "[" * 3000,
        b"\xff\xfe\x00",
        b"a: \x00",
        "? [a]\n: b",
    ],
)
def test_wicked_texts_are_mistakes_too(write, text: str | bytes) -> None:  # type: ignore[no-untyped-def]
    assert mistakes(write(text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "none.yaml")[0].endswith(": cannot be read: No such file or directory")
    assert mistakes(tmp_path)[0].endswith(": cannot be read: Is a directory")


def test_empty_sections_have_the_defaults(write) -> None:  # type: ignore[no-untyped-def]
    config = load_config(write("cluster: {bootstrap: true}\nlisten:\nlimits:\nstorage:\n  # segment_bytes: 1\n"), {})
    assert config == load_config(None, {})


def test_frozen() -> None:
    config = load_config(None, {})
    assert isinstance(config, NodeConfig)
    with pytest.raises(ValueError, match="frozen"):
        config.node.id = "other"


def test_topics_that_are_made_when_they_are_used(write) -> None:  # type: ignore[no-untyped-def]
    base = "cluster: {bootstrap: true}\n"
    none = load_config(write(base), {}).auto_create_topics
    assert (none.patterns, none.kind, none.partitions, none.replicas, none.settings) == (*([], "timer", 1, "auto", {}),)
    assert AutoCreate(none).replicas is None
    assert not AutoCreate(none).is_on and not AutoCreate(none).matches("orders")
    text = "auto_create_topics: {patterns: ['orders.*', 'a?'], kind: fair, replicas: 3, settings: {ageing: 1m}}"
    some = AutoCreate(load_config(write(base + text), {}).auto_create_topics)
    assert [name for name in ("orders.eu", "ab", "abc", "orders") if some.matches(name)] == ["orders.eu", "ab"]
    assert (some.kind, some.replicas, str(some)) == ("fair", 3, "orders.*, a?")
    environ = {"PATTERNS": "x.*,y", "SETTINGS": "{ttl: 1d, backoff: {first: 2s}}"}
    told = load_config(None, {f"SANDQ_AUTO_CREATE_TOPICS__{name}": value for name, value in environ.items()})
    assert told.auto_create_topics.patterns == ["x.*", "y"]
    assert told.auto_create_topics.settings == {"ttl": "1d", "backoff": {"first": "2s"}}


def test_mistakes_in_topics_that_are_made_when_they_are_used(write) -> None:  # type: ignore[no-untyped-def]
    text = """cluster: {bootstrap: true}
auto_create_topics:
  patterns: ["a b"]
  partitions: 5000
  settings: {ttl: soon, tenants: {}}
"""
    found = mistakes(write(text))
    assert found[0].startswith("bad.yaml:3:13: auto_create_topics.patterns: 'a b' is none; the rule: a pattern has")
    assert found[1] == "bad.yaml:4:15: auto_create_topics.partitions: 5000 is not within 1 to 4096"
    assert found[2].startswith("bad.yaml:5:13: auto_create_topics.settings: ")
    assert "ttl: 'soon' is not a duration" in found[2] and "tenants: unknown key" in found[2]
    (words,) = mistakes(None, {"SANDQ_AUTO_CREATE_TOPICS__SETTINGS": "ttl"})
    assert words.endswith("auto_create_topics.settings: a mapping of settings is expected, as {ttl: 1d}")


CERTIFIED = "{bootstrap: true}\ntls: {cert_file: a.pem, key_file: a-key.pem, ca_file: ca.pem"


def test_tls_is_required_where_there_is_a_certificate(write) -> None:  # type: ignore[no-untyped-def]
    assert not load_config(None, {}).tls.is_on
    tls = load_config(write(f"cluster: {CERTIFIED}}}"), {}).tls
    assert (tls.client, tls.http, tls.peer, tls.client_certificates) == ("require", "require", "require", "off")
    said = ", client: off, http: accept, peer: send, client_certificates: accept, client_name: san}"
    tls = load_config(write(f"cluster: {CERTIFIED}{said}"), {"SANDQ_TLS__PEER": "off"}).tls
    assert (tls.client, tls.http, tls.peer, tls.client_certificates) == ("off", "accept", "off", "accept")
    assert tls.is_on and tls.client_name == "san"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{client: require}", "tls.client: require needs cert_file and key_file, the certificate of this node"),
        ("{cert_file: a, key_file: b}", "tls.peer: require needs ca_file"),
        ("{cert_file: a, peer: off}", "tls.client: require needs key_file"),
        ("{key_file: b}", "tls.key_file: is the key of no certificate: say cert_file, too"),
        ("{client: send}", "tls.client: 'send' is none of off, accept, require"),
        ("{peer: on}", "tls.peer: 'true' is none of off, accept, send, require"),
        ("{client_certificates: require}", "tls.client_certificates: require needs ca_file"),
        ("{ca_file: c, client_certificates: accept}", "tls.client_certificates: accept needs TLS"),
        ("{client_name: dn}", "tls.client_name: 'dn' is none of subject, san"),
    ],
)
def test_mistakes_about_tls(write, section: str, said: str) -> None:  # type: ignore[no-untyped-def]
    found = mistakes(write(f"{FOUND}tls: {section}"))
    assert any(said in line for line in found), found


def test_environment_variables_of_clients_are_ignored() -> None:
    load_config(None, {f"SANDQ_{name}": "x" for name in ("CA", "CERT", "KEY", "TLS")})


def test_backup_url_with_password_is_refused(tmp_path: Path) -> None:
    for url in ("sftp://ada:secret@host/x", "s3://bucket/x?token=secret"):
        with pytest.raises(ConfigError, match="a password has no place in it") as refused:
            load_config(None, {"SANDQ_BACKUP__URL": url, "SANDQ_CLUSTER__BOOTSTRAP": "true"})
        assert "secret" not in refused.value.message
    config = load_config(None, {"SANDQ_BACKUP__URL": "s3://bucket/x", "SANDQ_CLUSTER__BOOTSTRAP": "true"})
    assert config.backup.url == "s3://bucket/x"
