//! Requirements on each reader of foreign bytes, for any input. Each folder of `corpus` is named like its
//! target.

mod bfd;
mod bfdd;
mod bgp;
mod capture;
mod control;
mod fpm;
mod join;
mod labels;
mod ldp;
mod model;
mod mrt;
mod netlink;
mod packets;
mod pe;
mod record;
mod rsvp;
mod scenario;
mod series;
mod stamp;

/// Target, which panics if its reader is wrong.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const ALL: [(&str, Target); 19] = [
    ("bfd", bfd::run),
    ("bfdd", bfdd::run),
    ("bgp", bgp::run),
    ("capture", capture::run),
    ("control", control::run),
    ("fpm", fpm::run),
    ("join", join::run),
    ("labels", labels::run),
    ("ldp", ldp::run),
    ("model", model::run),
    ("mrt", mrt::run),
    ("netlink", netlink::run),
    ("packets", packets::run),
    ("pe", pe::run),
    ("record", record::run),
    ("rsvp", rsvp::run),
    ("scenario", scenario::run),
    ("series", series::run),
    ("stamp", stamp::run),
];
