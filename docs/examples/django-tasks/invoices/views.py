"""The web interface: one view that creates, edits and deletes invoices. Add authentication before you deploy it."""

import json
from datetime import UTC, datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views import View

from invoices.models import Invoice

FIRST_DUE = datetime(2000, 1, 1, tzinfo=UTC)
LONGEST = timedelta(days=3650)
"""The longest time until an invoice is due. sandq accepts messages for the next ten years."""
LARGEST_NUMBER = 2**63 - 1


class InvoiceForm(ModelForm):
    class Meta:
        model = Invoice
        fields = ("user", "amount_cents", "due_at", "paid")

    def clean_due_at(self) -> datetime:
        due_at = self.cleaned_data["due_at"]
        if not FIRST_DUE <= due_at <= timezone.now() + LONGEST:
            raise ValidationError("A time from the year 2000 until ten years from now is expected.")
        return due_at


class InvoiceView(View):
    def dispatch(self, request: HttpRequest, number: int) -> HttpResponse:
        if number > LARGEST_NUMBER:
            raise Http404
        return super().dispatch(request, number)

    @transaction.atomic
    def put(self, request: HttpRequest, number: int) -> HttpResponse:
        """Create or replace an invoice."""
        try:
            data = json.loads(request.body)
        except (ValueError, RecursionError):  # no JSON, or nested too deeply
            data = None
        if not isinstance(data, dict):
            return JsonResponse({"errors": {"body": ["a JSON object is expected"]}}, status=400)
        # Without the lock, `save` could overwrite the time that the worker writes to the row meanwhile.
        invoice = Invoice.objects.select_for_update().filter(pk=number).first() or Invoice(pk=number)
        # A form expects texts, as a browser sends them.
        form = InvoiceForm({name: str(value) for name, value in data.items()}, instance=invoice)
        if not form.is_valid():
            return JsonResponse({"errors": form.errors}, status=400)
        form.save()
        return JsonResponse({"invoice": number, "due_at": invoice.due_at})

    @transaction.atomic
    def delete(self, request: HttpRequest, number: int) -> HttpResponse:
        deleted, _ = Invoice.objects.filter(pk=number).delete()
        return HttpResponse(status=204 if deleted else 404)
