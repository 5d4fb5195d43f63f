"""Masks and start weights that travel: load a ticket, save it as one file, export it, shrink its network."""

from lottery.errors import TicketError
from lottery.tickets import compaction, exporting, timing
from lottery.tickets.ticket import Ticket, load, of

__all__ = ["Ticket", "TicketError", "compaction", "exporting", "load", "of", "timing"]
