"""Into an etcd that asks who comes: by user and password, and by TLS with certificates on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.parts import find_program
from strata.client.unary import get_key, set_key
from strata.cluster import commands as c
from strata.coordinator.entry.certificates import CertificateFiles, make_certificates
from strata.coordinator.etcd.etcd_client import EtcdClient
from strata.coordinator.etcd.target import parse_target
from strata.coordinator.journal import Entry
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.errors import JournalUnavailableError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.ha.etcd import EtcdCluster, lead
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.process import accepts_connections, free_ports, running
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.part("etcd")
ENTRY = Entry(c.Goodbye(worker_id="w", incarnation="i"), 1.0)


def test_a_user_with_a_password_is_let_in_and_others_are_not(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, "--auth-token-ttl=1", nodes=1).serving() as cluster:
        target = cluster.target()
        cluster.control("user", "add", "root:root")
        cluster.control("user", "add", "strata:secret")
        cluster.control("role", "add", "journal")
        cluster.control("role", "grant-permission", "journal", "--prefix=true", "readwrite", f"{target.prefix}/")
        cluster.control("user", "grant-role", "strata", "journal")
        cluster.control("user", "grant-role", "root", "root")
        cluster.control("auth", "enable")
        journal = lead(replace(target, user="strata", password="secret"))
        journal.append([ENTRY])
        # A token that is over is asked for anew.
        journal._client._token = "gone"
        journal.append([ENTRY])
        # Another endpoint takes the same one: a login costs etcd much.
        token = journal._client._token
        journal._client.next_endpoint()
        assert journal.load() == (None, [ENTRY, ENTRY])
        assert journal._client._token == token
        for other in (target, replace(target, user="strata", password="wrong")):
            with pytest.raises(JournalUnavailableError, match=r"user name is empty|invalid user ID or password"):
                EtcdJournal(other, read_s=1.0).load()
        elsewhere = replace(target, prefix="elsewhere", user="strata", password="secret")
        with pytest.raises(JournalUnavailableError, match="permission denied"):
            EtcdJournal(elsewhere, read_s=1.0).load()


@contextmanager
def secured_etcd(folder: Path, files: CertificateFiles, *options: str) -> Iterator[int]:
    """Run a node that asks for certificates; the block gets its port."""
    port, peer = free_ports(2)
    command = ["etcd", f"--data-dir={folder / 'data'}", f"--listen-client-urls=https://127.0.0.1:{port}"]
    command += [f"--advertise-client-urls=https://127.0.0.1:{port}", f"--listen-peer-urls=http://127.0.0.1:{peer}"]
    command += [f"--cert-file={files.cert}", f"--key-file={files.key}"]
    command += ["--client-cert-auth", f"--trusted-ca-file={files.ca}", *options]
    with running(command, log=folder / "log", is_ready=lambda: accepts_connections(port)):
        yield port


def settings(files: CertificateFiles) -> dict[str, str]:
    return {
        "STRATA_ETCD_CA": str(files.ca),
        "STRATA_ETCD_CERT": str(files.client_cert),
        "STRATA_ETCD_KEY": str(files.client_key),
    }


def test_coordinators_elect_follow_and_take_over_with_certificates_and_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path / "tls", hosts=["127.0.0.1"], days=1)
    (tmp_path / "password").write_text("secret\n")
    password = {"STRATA_ETCD_USER": "strata", "STRATA_ETCD_PASSWORD_FILE": str(tmp_path / "password")}
    for name, value in {**settings(files), **password}.items():
        monkeypatch.setenv(name, value)
    # Tokens that nobody uses end soon: those of the follower, and of the journal.
    with secured_etcd(tmp_path, files, "--auth-token-ttl=2") as port:
        program = find_program("etcdctl")
        control = [str(program), f"--endpoints=https://127.0.0.1:{port}", f"--cacert={files.ca}"]
        control += [f"--cert={files.client_cert}", f"--key={files.client_key}"]
        for words in (
            "user add root:root",
            "user add strata:secret",
            "role add journal",
            "role grant-permission journal --prefix=true readwrite strata/",
            "user grant-role strata journal",
            "user grant-role root root",
            "auth enable",
        ):
            environment = {**os.environ, "ETCDCTL_API": "3"}
            subprocess.run([*control, *words.split()], env=environment, check=True, timeout=stretch(30))
        state = f"etcds://127.0.0.1:{port}/strata"
        with Replicas(tmp_path, state, hosts=("127.0.0.1",) * 2).serving() as replicas:
            first = replicas.leader()
            kept = set_key(replicas.url, "default", "k", b"v", token=0)
            wait_until(lambda: (replicas.describe(1 - first) or pb.Description()).applied == 1, "the standby follows")
            replicas.kill(first)
            assert replicas.leader() == 1 - first
            assert get_key(replicas.url, "default", "k").token == kept.token
            assert set_key(replicas.url, "default", "k", b"w", token=kept.token).is_set


def test_tls_checks_both_sides(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "ours", hosts=["127.0.0.1"], days=1)
    others = make_certificates(tmp_path / "theirs", hosts=["127.0.0.1"], days=1)
    with secured_etcd(tmp_path, files) as port:
        target = parse_target(f"etcds://127.0.0.1:{port}/strata", settings(files))
        client = EtcdClient(target)
        client.insist(lambda: client.grant_lease(60), give_up_s=stretch(10))
        journal = lead(target)
        journal.append([ENTRY])
        assert journal.load() == (None, [ENTRY])
        for refused in (
            replace(target, ca=others.ca.read_bytes()),
            replace(target, certificate=others.client_cert.read_bytes(), key=others.client_key.read_bytes()),
            replace(target, is_secure=False),
        ):
            with pytest.raises(JournalUnavailableError):
                EtcdJournal(refused, read_s=1.0).load()


@pytest.mark.parametrize("fault", ["nobody there", "a user that it does not know", "TLS that it does not speak"])
def test_a_coordinator_that_etcd_does_not_answer_says_why(tmp_path: Path, fault: str) -> None:
    with EtcdCluster(tmp_path, nodes=1).serving() as cluster:
        endpoint = f"127.0.0.1:{free_ports(1)[0]}" if fault == "nobody there" else cluster.target().endpoints[0]
        options = ["--state", f"{'etcds' if fault.startswith('TLS') else 'etcd'}://{endpoint}/p", "--leader-lease", "2"]
        if fault.startswith("a user"):
            (tmp_path / "password").write_text("wrong")
            cluster.control("user", "add", "root:root")
            cluster.control("user", "grant-role", "root", "root")
            cluster.control("auth", "enable")
            options = ["env", "STRATA_ETCD_USER=root", f"STRATA_ETCD_PASSWORD_FILE={tmp_path / 'password'}", *options]
        words = "invalid user ID or password" if fault.startswith("a user") else "failed to connect"
        environment, options = (options[:3], options[3:]) if options[0] == "env" else ([], options)
        command = [*environment, sys.executable, "-m", "strata", "coordinator", "--grpc-address", "127.0.0.1:0"]
        command += ["--channel-address", "127.0.0.1:0", "--http-port", "0", *options]
        log = tmp_path / "coordinator.log"
        with running(command, log=log, is_ready=lambda: b"ready grpc=" in log.read_bytes()):
            wait_until(lambda: "it goes on trying: " in log.read_text(), timeout_s=stretch(30))
            assert words in log.read_text()
            port = log.read_text().rpartition("http=")[2].split()[0]
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/ready", timeout=stretch(10))
            assert words in json.loads(caught.value.read())["reason"]
