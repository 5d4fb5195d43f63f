"""Masks and start weights that travel: load a ticket, save it as one file, export it, shrink its network."""

from lottery.errors import TicketError
from lottery.tickets.ticket import Ticket, load, of

__all__ = ["Ticket", "TicketError", "load", "of"]
