"""Settings of the project. Environment variables hold the settings that differ between machines."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

BROKER = os.environ.get("BROKER", "127.0.0.1:7170").split(",")
"""Nodes of sandq, `host:port`. One that answers is enough."""
BROKER_TIMEOUT = "2s"
"""Maximum time that a web request waits for sandq."""

SECRET_KEY = os.environ.get("SECRET_KEY", "django-insecure-only-for-development")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1").split(",")

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "invoices"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "db.sqlite3"),
        # The web server and the worker write to the same file: each waits for the other.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        # Tests use a file, too, because SQLite locks a database in memory differently.
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The worker prints the mails. To send them: docs.djangoproject.com/en/5.2/topics/email/#smtp-backend
EMAIL_BACKEND = os.environ.get("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")
EMAIL_HOST = os.environ.get("EMAIL_HOST", "localhost")
EMAIL_TIMEOUT = 20
DEFAULT_FROM_EMAIL = "shop@example.org"
