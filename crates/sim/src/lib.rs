//! Drives the core in virtual time: a plan and a seed in, an outcome out.
#![forbid(unsafe_code)]
