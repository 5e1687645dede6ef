"""Provide a database, and a broker whose clock the tests move."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import django
import pytest
from django.conf import settings
from django.core import mail
from django.core.management import call_command
from django.test.utils import override_settings, setup_databases, setup_test_environment, teardown_databases
from sandq.testing import Broker

pytest_plugins = ["sandq.testing.plugin"]
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
django.setup()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create an empty database, and keep mails in `django.core.mail.outbox`."""
    settings.DATABASES["default"]["TEST"]["NAME"] = tmp_path_factory.mktemp("database") / "test.sqlite3"
    setup_test_environment()
    databases = setup_databases(verbosity=0, interactive=False)
    yield
    teardown_databases(databases, verbosity=0)


@pytest.fixture
def broker(database: None, sandq_broker: Broker) -> Iterator[Broker]:
    """Return the broker of this test. The database is empty, and no worker runs yet."""
    from invoices import mails

    call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)
    mail.outbox.clear()
    mails._clients.clear()
    # A slow machine must not fail a test.
    with override_settings(BROKER=[sandq_broker.address], BROKER_TIMEOUT="5m"), mails.client():
        yield sandq_broker


@pytest.fixture
def worker(broker: Broker) -> Iterator[None]:
    """Run the worker in a thread until the test ends."""
    from invoices import mails
    from invoices.worker import work

    thread = threading.Thread(target=work, args=(mails.client(),))
    thread.start()
    broker.wait_for_consumers(mails.TOPIC, mails.GROUP)
    yield
    mails.client().close()
    thread.join()
