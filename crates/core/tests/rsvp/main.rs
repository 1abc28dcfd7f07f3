//! Tests of RSVP-TE speakers: networks of speakers under all orders of messages and faults (`model`), and single
//! speakers whose neighbors fail or do not follow the RFCs (`peers`).

mod model;
mod network;
mod peers;
