"""Routes of the project."""

from django.urls import path

from invoices.views import InvoiceView

urlpatterns = [path("invoices/<int:number>", InvoiceView.as_view())]
