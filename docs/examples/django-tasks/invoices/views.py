"""The web interface: one view that creates, edits and deletes invoices. Add authentication before you deploy it."""

import json

from django.db import transaction
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import View

from invoices.models import Invoice


class InvoiceForm(ModelForm):
    class Meta:
        model = Invoice
        fields = ("user", "amount_cents", "due_at", "paid")


class InvoiceView(View):
    @transaction.atomic
    def put(self, request: HttpRequest, number: int) -> HttpResponse:
        """Create or replace an invoice."""
        try:
            data = json.loads(request.body)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            return JsonResponse({"errors": {"body": ["a JSON object is expected"]}}, status=400)
        # Without the lock, `save` could overwrite the time that the worker writes to the row meanwhile.
        invoice = Invoice.objects.select_for_update().filter(pk=number).first() or Invoice(pk=number)
        form = InvoiceForm(data, instance=invoice)
        if not form.is_valid():
            return JsonResponse({"errors": form.errors}, status=400)
        form.save()
        return JsonResponse({"invoice": number, "due_at": invoice.due_at})

    @transaction.atomic
    def delete(self, request: HttpRequest, number: int) -> HttpResponse:
        deleted, _ = Invoice.objects.filter(pk=number).delete()
        return HttpResponse(status=204 if deleted else 404)
