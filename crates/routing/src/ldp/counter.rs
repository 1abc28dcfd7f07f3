//! What a speaker counts.

use netstage_host::counters;

counters! {
    /// What a speaker counts.
    HellosSent "hellos-sent" Info "Hellos that were sent."
    HellosFailed "hellos-failed" Warning "Hellos that an interface or a route did not take."
    HellosReceived "hellos-received" Info "Datagrams that came to the port of discovery."
    Connected "connected" Info "Connections that this end opened."
    ConnectFailed "connect-failed" Warning "Connections that this end could not open."
    Accepted "accepted" Info "Connections that a peer opened."
    Up "up" Info "Sessions that came up."
    Refused "refused" Warning "Sessions that did not come up after a connection was there."
    Down "down" Warning "Sessions that were up and ended."
    BytesReceived "bytes-received" Info "Bytes that came by connections."
    BytesSent "bytes-sent" Info "Bytes that were given to connections."
    Mappings "mappings" Info "Labels that peers told of."
    Withdrawals "withdrawals" Info "Labels that peers withdrew."
    WrongSignatures "wrong-signatures" Error "TCP segments in the namespace without the MD5 signature that was to be there, or with another, while a peer had no session."
}
