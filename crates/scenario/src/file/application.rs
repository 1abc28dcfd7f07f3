//! `traffic` of application flows: the application models and their settings.
//!
//! The defaults are published values; docs/traffic.md gives their sources.

use crate::scalar::{BoundedCount, BoundedSize, FilePath, Positive, PositiveDuration, Probability, Scale};
use crate::table::{List, Located, choice, table};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::application::{Codec, TransferDirection};

/// Size of a message.
type MessageSize = BoundedSize<32, 4_294_967_295>;
/// Standard deviation of sizes.
type Deviation = BoundedSize<0, 4_294_967_295>;
/// Payload of a datagram.
type DatagramSize = BoundedSize<32, 65_507>;

table! {
    /// File transfers, each over a separate connection.
    pub(crate) struct FtpTraffic "traffic \"ftp\"" {
        /// Mean size of a file; default: 2 MB, log-normal with standard deviation 722 kB, at most 5 MB.
        size: Option<MessageSize>,
        /// Standard deviation of the log-normal size; default: 0 if `size` is set.
        deviation: Option<Deviation>,
        /// Maximum size.
        largest: Option<MessageSize>,
        /// Mean of the exponential time between transfers.
        think: Duration = "180 s",
        /// Direction of the files; the client is at `from`.
        direction: TransferDirection = "download",
        /// Number of files; default: unlimited.
        files: Option<BoundedCount<1, 1_000_000_000>>,
    }
}

choice!(TransferDirection {
    /// From the server to the client.
    "download" => TransferDirection::Download,
    /// From the client to the server.
    "upload" => TransferDirection::Upload,
});

table! {
    /// Web pages: a main object, then the objects it references.
    pub(crate) struct Pages "traffic \"web\"" {
        /// Mean size of the main object; default: 18 kB, log-normal with standard deviation 42 kB, at most 2 MB.
        main_size: Option<MessageSize>,
        /// Standard deviation of the main object's size; default: 0 if `main_size` is set.
        main_deviation: Option<Deviation>,
        /// Mean number of further objects.
        objects: BoundedCount<0, 10_000> = 70,
        /// Draw the number of further objects for each page from a geometric distribution.
        objects_vary: bool = true,
        /// Mean size of a further object; default: 37.6 kB, log-normal with standard deviation 88 kB, at most 2 MB.
        object_size: Option<MessageSize>,
        /// Standard deviation of a further object's size; default: 0 if `object_size` is set.
        object_deviation: Option<Deviation>,
        /// Size of a request.
        request: MessageSize = "350 B",
        /// Protocol that fetches the objects.
        protocol: Located<HttpVersion> = "http1",
        /// Parallel connections, with `http1`.
        connections: Option<Located<BoundedCount<1, 64>>>,
        /// Mean of the exponential time from the main object to the requests for the further objects.
        parse: Duration = "130 ms",
        /// Mean of the exponential time between pages.
        think: Duration = "30 s",
        /// Processing time of the server per object.
        server: Duration = "0 s",
    }
}

/// Protocol that fetches the objects of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    One,
    Two,
}

choice!(HttpVersion {
    /// HTTP/1.1: one object at a time on each of several connections.
    "http1" => HttpVersion::One,
    /// HTTP/2 or HTTP/3: all objects at once on one connection.
    "http2" => HttpVersion::Two,
});

table! {
    /// Adaptive video in segments (DASH).
    pub(crate) struct Video "traffic \"video\"" {
        /// Available bit rates, ascending; default: 145, 365, 730, 1100, 2000, 3000, 4500, 6000 and 7800 kbit/s.
        rates: Option<List<BitRate, 1, 100>>,
        /// Playback time of a segment.
        segment: PositiveDuration = "4 s",
        /// Maximum playback time buffered.
        buffer: PositiveDuration = "30 s",
        /// Playback time buffered before playback starts or resumes.
        startup: PositiveDuration = "4 s",
        /// Selection of the bit rate.
        adaptation: Located<RateAdaptation> = "buffer",
        /// With `buffer`: buffer level up to which the lowest rate is chosen; default: 3/8 of `buffer`.
        reservoir: Option<Located<Duration>>,
        /// With `buffer`: range of buffer levels over which the rate rises to the highest; default: 21/40 of `buffer`.
        cushion: Option<Located<Duration>>,
        /// With `throughput`: usable fraction of the measured throughput; default: 0.85.
        share: Option<Located<Probability>>,
        /// With `throughput`: number of last segments measured; default: 20.
        window: Option<Located<BoundedCount<1, 1_000>>>,
        /// Size of a request.
        request: MessageSize = "350 B",
    }
}

/// Selection of the bit rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateAdaptation {
    Buffer,
    Throughput,
    Fixed,
}

choice!(RateAdaptation {
    /// By the buffer level (BBA-0).
    "buffer" => RateAdaptation::Buffer,
    /// By the harmonic mean of the throughput of the last segments.
    "throughput" => RateAdaptation::Throughput,
    /// Always the highest rate.
    "fixed" => RateAdaptation::Fixed,
});

table! {
    /// Video in frames of varying size, sent at the frame rate.
    pub(crate) struct VideoFrames "traffic \"video-frames\"" {
        /// Mean bit rate.
        rate: BitRate = "4 Mbit/s",
        /// Frames per second.
        frames_per_second: Positive = 25,
        /// Frames from an I frame to the next (group of pictures).
        group: BoundedCount<1, 10_000> = 12,
        /// B frames between two I or P frames.
        b_frames: BoundedCount<0, 100> = 2,
        /// Ratio of the mean sizes of I, P and B frames; default: 5, 3, 1.
        sizes: Option<List<Positive, 3, 3>>,
        /// Standard deviation of the sizes of a frame type, relative to the mean.
        variation: Probability = 0.3,
        /// Playout delay of the receiver, which absorbs delay variation.
        playout_delay: Duration = "200 ms",
    }
}

table! {
    /// Telephone call in both directions.
    pub(crate) struct Voip "traffic \"voip\"" {
        /// Speech codec.
        codec: Located<Codec> = "g711",
        /// Bit rate of the codec, with `opus` only; default: 32 kbit/s.
        rate: Option<Located<BitRate>>,
        /// Duration of the speech in a packet.
        packet: PositiveDuration = "20 ms",
        /// Send only during talk-spurts.
        talk_spurts: bool = false,
        /// Mean of the exponential length of a talk-spurt.
        talk: PositiveDuration = "1004 ms",
        /// Mean of the exponential length of a pause.
        pause: PositiveDuration = "1587 ms",
        /// Length of the receiver's jitter buffer.
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
    /// DNS lookups.
    pub(crate) struct Lookups "traffic \"dns\"" {
        /// Payload of a query.
        query: DatagramSize = "45 B",
        /// Payload of a response.
        answer: DatagramSize = "160 B",
        /// Mean of the exponential time between lookups.
        interval: PositiveDuration = "1 s",
        /// Retransmission timeout of a query.
        timeout: PositiveDuration = "5 s",
        /// Queries sent before a lookup fails.
        attempts: BoundedCount<1, 100> = 2,
        /// Processing time of the server.
        server: Duration = "0 s",
    }
}

table! {
    /// Game: small packets in both directions.
    pub(crate) struct Gaming "traffic \"gaming\"" {
        /// Interval of the client's packets.
        client_gap: PositiveDuration = "40 ms",
        /// Most frequent size of the client's packets.
        client_packet: BoundedSize<32, 1_400> = "80 B",
        /// Scale of the extreme value distribution of these sizes in bytes; 0 for a constant size.
        client_scale: Scale = 5.7,
        /// Most frequent interval of the server's packets.
        server_gap: PositiveDuration = "55 ms",
        /// Scale of the extreme value distribution of these intervals; 0 for a constant interval.
        server_gap_scale: Duration = "6 ms",
        /// Most frequent size of the server's packets.
        server_packet: BoundedSize<32, 1_400> = "120 B",
        /// Scale of the extreme value distribution of these sizes in bytes; 0 for a constant size.
        server_scale: Scale = 36,
    }
}

table! {
    /// Requests and responses.
    pub(crate) struct RequestResponse "traffic \"request-response\"" {
        /// Mean size of a request.
        request: MessageSize = "200 B",
        /// Standard deviation of the log-normal size of a request.
        request_deviation: Option<Deviation>,
        /// Mean size of a response.
        response: MessageSize = "1 kB",
        /// Standard deviation of the log-normal size of a response.
        response_deviation: Option<Deviation>,
        /// Closed loop: mean of the exponential time from a response to the next request; default: 0.
        think: Option<Located<Duration>>,
        /// Open loop instead of a closed loop: mean requests per second (Poisson).
        per_second: Option<Located<Positive>>,
        /// Connections, used in turn; with a closed loop, each has one outstanding request.
        connections: Located<BoundedCount<1, 64>> = 1,
        /// Processing time of the server.
        server: Duration = "0 s",
        /// Timeout of a request.
        timeout: PositiveDuration = "5 s",
    }
}

table! {
    /// Block storage: reads and writes over one connection.
    pub(crate) struct Blocks "traffic \"block-storage\"" {
        /// Size of a block.
        block: BoundedSize<1, 1_073_741_824> = "4 KiB",
        /// Fraction of commands that are reads.
        reads: Probability = 0.7,
        /// Outstanding commands.
        queue_depth: BoundedCount<1, 10_000> = 32,
        /// Processing time of the device per command.
        server: Duration = "100 us",
        /// Reads as large as the congestion window that the server reports, divided by `queue_depth`, and at most a block.
        follow_window: bool = false,
    }
}

table! {
    /// Model created from a capture by `netstage traffic learn`.
    pub(crate) struct LearnedModel "traffic \"learned\"" {
        /// Model file, relative to the scenario.
        file: Located<FilePath>,
        /// Replay the captured messages instead of drawing from the distributions.
        replay: bool = false,
    }
}
