//! Tests of BFD speakers: one speaker with packets made by hand (`session`), two speakers on a link in random runs
//! (`simulation`), and in all orders of packets (`orders`).

mod link;
mod orders;
mod session;
mod simulation;
