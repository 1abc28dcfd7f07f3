//! Tests of the program without privileges: messages, errors and results of scenarios.

mod cli;
mod corpora;
mod docs;
mod package;
mod rates;
mod scenarios;
mod serve;
#[path = "../support/mod.rs"]
mod support;

netstage_harness::main![
    cli,
    corpora,
    docs,
    package,
    rates,
    scenarios,
    serve::records,
    serve::runs,
    serve::scenarios,
    serve::strangers
];
