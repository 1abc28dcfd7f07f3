//! Tests of RSVP-TE speakers: networks of speakers under all orders of messages and faults (`model`), single
//! speakers whose neighbors fail or do not follow the RFCs (`peers`), and authentication against an attacker.

mod authentication;
mod model;
mod network;
mod peers;
