//! Cells, repeats, resume, expectations, records and figures.
#![forbid(unsafe_code)]
