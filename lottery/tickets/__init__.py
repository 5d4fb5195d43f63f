"""Masks and start weights that travel: load a ticket, keep it as one file, export it, make its network smaller."""

from lottery.errors import TicketError
from lottery.tickets.ticket import Ticket, load, of, shapes

__all__ = ["Ticket", "TicketError", "load", "of", "shapes"]
