//! Tests of RSVP-TE speakers: networks of speakers under all orders of messages and faults (`model`), LSPs that a
//! bypass repairs (`bypass`), single speakers whose neighbors fail or do not follow the RFCs (`peers`), and authentication against an attacker.

mod authentication;
mod bypass;
mod model;
mod network;
mod peers;
