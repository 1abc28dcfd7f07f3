//! `traffic` of a flow that is a dialogue: the application models and their settings.
//!
//! The defaults are published figures; docs/traffic.md has their sources.

use crate::scalar::{Bytes, Count, FilePath, Positive, Probability, Scale, Span};
use crate::table::{At, List, choice, table};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{Codec, Way};

/// What a message may hold.
type MessageSize = Bytes<32, 4_294_967_295>;
/// How far sizes may spread.
type Deviation = Bytes<0, 4_294_967_295>;
/// What a datagram may hold.
type DatagramSize = Bytes<32, 65_507>;

table! {
    /// File transfers, each over a connection of its own.
    pub(crate) struct Ftp "traffic \"ftp\"" {
        /// Mean size of a file; left out: 2 MB, log-normal with deviation 722 kB, at most 5 MB.
        size: Option<MessageSize>,
        /// Standard deviation of the size, log-normal; left out: none where `size` is given.
        deviation: Option<Deviation>,
        /// Largest size.
        largest: Option<MessageSize>,
        /// Mean time between a transfer and the next, exponential.
        think: Duration = "180 s",
        /// Which way files go; the client is at `from`.
        way: Way = "download",
        /// Files in all; left out: no end.
        files: Option<Count<1, 1_000_000_000>>,
    }
}

choice!(Way {
    /// From the server to the client.
    "download" => Way::Download,
    /// From the client to the server.
    "upload" => Way::Upload,
});

table! {
    /// Web pages: a main object, then the objects it refers to.
    pub(crate) struct Pages "traffic \"web\"" {
        /// Mean size of the main object; left out: 18 kB, log-normal with deviation 42 kB, at most 2 MB.
        main_size: Option<MessageSize>,
        /// Standard deviation of the main object's size; left out: none where `main_size` is given.
        main_deviation: Option<Deviation>,
        /// Mean number of other objects.
        objects: Count<0, 10_000> = 70,
        /// Draw their number anew for each page (geometric).
        objects_vary: bool = true,
        /// Mean size of another object; left out: 37.6 kB, log-normal with deviation 88 kB, at most 2 MB.
        object_size: Option<MessageSize>,
        /// Standard deviation of these sizes; left out: none where `object_size` is given.
        object_deviation: Option<Deviation>,
        /// Size of a request.
        request: MessageSize = "350 B",
        /// How objects are fetched.
        protocol: At<Http> = "http1",
        /// Connections at once, with `http1`.
        connections: Option<At<Count<1, 64>>>,
        /// Mean time from the main object to the requests for the others, exponential.
        parse: Duration = "130 ms",
        /// Mean time between a page and the next, exponential.
        think: Duration = "30 s",
        /// Time the server takes for each object.
        server: Duration = "0 s",
    }
}

/// How objects are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    One,
    Two,
}

choice!(Http {
    /// One after the other on each of several connections (HTTP/1.1).
    "http1" => Http::One,
    /// All at once on one connection (HTTP/2, HTTP/3).
    "http2" => Http::Two,
});

table! {
    /// Video in segments whose bit rate adapts (DASH).
    pub(crate) struct Video "traffic \"video\"" {
        /// Bit rates to choose from, ascending; left out: 145, 365, 730, 1100, 2000, 3000, 4500, 6000 and 7800 kbit/s.
        rates: Option<List<BitRate, 1, 100>>,
        /// Media time of a segment.
        segment: Span = "4 s",
        /// Most media time buffered.
        buffer: Span = "30 s",
        /// Media time buffered before play-out begins, and begins again.
        startup: Span = "4 s",
        /// How the bit rate is chosen.
        adaptation: At<Adapt> = "buffer",
        /// With `buffer`: media time for which the lowest rate is kept; left out: 3/8 of `buffer`.
        reservoir: Option<At<Duration>>,
        /// With `buffer`: media time over which the rate climbs; left out: 21/40 of `buffer`.
        cushion: Option<At<Duration>>,
        /// With `throughput`: share of the measured throughput that is used; left out: 0.85.
        share: Option<At<Probability>>,
        /// With `throughput`: segments looked back on; left out: 20.
        window: Option<At<Count<1, 1_000>>>,
        /// Size of a request.
        request: MessageSize = "350 B",
    }
}

/// How the bit rate is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adapt {
    Buffer,
    Throughput,
    Fixed,
}

choice!(Adapt {
    /// By the buffer's level (BBA-0).
    "buffer" => Adapt::Buffer,
    /// By the throughput of the last segments (harmonic mean).
    "throughput" => Adapt::Throughput,
    /// Always the highest.
    "fixed" => Adapt::Fixed,
});

table! {
    /// Video in frames of varying size, sent as they come.
    pub(crate) struct VideoFrames "traffic \"video-frames\"" {
        /// Mean bit rate.
        rate: BitRate = "4 Mbit/s",
        /// Frames per second.
        frames_per_second: Positive = 25,
        /// Frames from one I frame to the next.
        group: Count<1, 10_000> = 12,
        /// B frames between two I or P frames.
        b_frames: Count<0, 100> = 2,
        /// Mean sizes of I, P and B frames relative to each other; left out: 5, 3, 1.
        sizes: Option<List<Positive, 3, 3>>,
        /// Deviation of the sizes of one kind of frame, relative to their mean.
        variation: Probability = 0.3,
        /// What the viewer buffers against varying delay.
        playout_delay: Duration = "200 ms",
    }
}

table! {
    /// A telephone call, both ways.
    pub(crate) struct Voip "traffic \"voip\"" {
        /// How speech is coded.
        codec: At<Codec> = "g711",
        /// Bit rate of the codec, for `opus` only; left out: 32 kbit/s.
        rate: Option<At<BitRate>>,
        /// Speech in one packet.
        packet: Span = "20 ms",
        /// Send only while speaking.
        talk_spurts: bool = false,
        /// Mean length of a talk-spurt, exponential.
        talk: Span = "1004 ms",
        /// Mean length of a pause, exponential.
        pause: Span = "1587 ms",
        /// What the listener buffers against varying delay.
        jitter_buffer: Duration = "60 ms",
    }
}

choice!(Codec {
    /// ITU-T G.711, 64 kbit/s.
    "g711" => Codec::G711,
    /// ITU-T G.729, 8 kbit/s.
    "g729" => Codec::G729,
    /// Opus (RFC 6716).
    "opus" => Codec::Opus,
});

table! {
    /// Name lookups.
    pub(crate) struct Lookups "traffic \"dns\"" {
        /// Payload of a query.
        query: DatagramSize = "45 B",
        /// Payload of an answer.
        answer: DatagramSize = "160 B",
        /// Mean time between lookups, exponential.
        interval: Span = "1 s",
        /// Time until a query is sent again.
        timeout: Span = "5 s",
        /// Queries sent before a lookup is given up.
        attempts: Count<1, 100> = 2,
        /// Time the server takes.
        server: Duration = "0 s",
    }
}

table! {
    /// A game: small packets both ways.
    pub(crate) struct Gaming "traffic \"gaming\"" {
        /// Gap between the client's packets.
        client_gap: Span = "40 ms",
        /// Most frequent size of the client's packets.
        client_packet: Bytes<32, 1_400> = "80 B",
        /// Scale of their extreme value distribution, bytes; 0 for a constant size.
        client_scale: Scale = 5.7,
        /// Most frequent gap between the server's packets.
        server_gap: Span = "55 ms",
        /// Scale of the gaps' extreme value distribution; 0 for a constant gap.
        server_gap_scale: Duration = "6 ms",
        /// Most frequent size of the server's packets.
        server_packet: Bytes<32, 1_400> = "120 B",
        /// Scale of their extreme value distribution, bytes; 0 for a constant size.
        server_scale: Scale = 36,
    }
}

table! {
    /// Requests and responses.
    pub(crate) struct RequestResponse "traffic \"request-response\"" {
        /// Mean size of a request.
        request: MessageSize = "200 B",
        /// Standard deviation of it, log-normal.
        request_deviation: Option<Deviation>,
        /// Mean size of a response.
        response: MessageSize = "1 kB",
        /// Standard deviation of it, log-normal.
        response_deviation: Option<Deviation>,
        /// Closed loop: mean time from a response to the next request, exponential; left out: none.
        think: Option<At<Duration>>,
        /// Open loop: requests per second, Poisson, in place of a closed loop.
        per_second: Option<At<Positive>>,
        /// Connections, used in turn; with a closed loop, each has a request under way.
        connections: At<Count<1, 64>> = 1,
        /// Time the server takes.
        server: Duration = "0 s",
        /// When a request is given up.
        timeout: Span = "5 s",
    }
}

table! {
    /// Blocks read and written over one connection.
    pub(crate) struct Blocks "traffic \"block-storage\"" {
        /// Size of a block.
        block: Bytes<1, 1_073_741_824> = "4 KiB",
        /// Share of commands that read.
        reads: Probability = 0.7,
        /// Commands under way at once.
        queue_depth: Count<1, 10_000> = 32,
        /// Time the device takes for a command.
        server: Duration = "100 us",
    }
}

table! {
    /// What `netstage traffic learn` made of a capture.
    pub(crate) struct LearnedModel "traffic \"learned\"" {
        /// The model file, relative to the scenario.
        file: At<FilePath>,
        /// Say exactly what was captured, in place of drawing from its distributions.
        replay: bool = false,
    }
}
