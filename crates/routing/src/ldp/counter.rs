//! Counters of an LDP speaker.

use netstage_host::counters;

counters! {
    /// Counters of an LDP speaker.
    HellosSent "hellos-sent" Info "Hellos sent."
    HellosFailed "hellos-failed" Warning "Hellos that could not be sent."
    HellosReceived "hellos-received" Info "Datagrams received at the discovery port."
    Connected "connected" Info "TCP connections opened by this end."
    ConnectFailed "connect-failed" Warning "TCP connections that this end failed to open."
    Accepted "accepted" Info "TCP connections opened by peers."
    Up "up" Info "Sessions established."
    Refused "refused" Warning "Connections closed before a session was established."
    Down "down" Warning "Established sessions that ended."
    Restarting "restarting" Warning "Established sessions that were lost, with the peer's labels kept for a graceful restart."
    BytesReceived "bytes-received" Info "Bytes received over TCP."
    BytesSent "bytes-sent" Info "Bytes queued for sending over TCP."
    Mappings "mappings" Info "Label mappings received."
    Withdrawals "withdrawals" Info "Label withdrawals received."
    WrongSignatures "wrong-signatures" Error "TCP segments dropped in the namespace for a missing, unexpected or wrong MD5 signature while a peer had no session."
}
