# The single-bottleneck network of the I2VFC paper (section 3.1), without
# control, in ns-2: bulk TCP flows of several VPNs and Poisson UDP background
# share one drop-tail link. Prints one JSON line; its fields, and the settings
# equal in all simulators, are described in bench/sim/README.md.

array set setting {
    case custom  vpns 4  flows 2
    bottleneck-mbps 50  buffer 50  access-mbps 1000  access-buffer 1000
    background-mbps 15  window-bytes 65536  initial-window 10
    delays-ms 50,25,75,50,25  start 5  stop 50  seed 1
    scheduler Splay
}
foreach argument $argv {
    if {![regexp {^--([a-z-]+)=(.*)$} $argument -> name value] || ![info exists setting($name)]} {
        puts stderr "unknown argument $argument; known: [lsort [array names setting]]"
        exit 2
    }
    set setting($name) $value
}
set delays_ms [split $setting(delays-ms) ,]
if {[llength $delays_ms] < $setting(vpns)} {
    puts stderr "--delays-ms gives [llength $delays_ms] delays for $setting(vpns) VPNs"
    exit 2
}
set segment_bytes 1448
set packet_bytes 1500

# Packets carry only the headers used here: less memory and less copying.
remove-all-packet-headers
add-packet-header IP TCP Flags RTP

# Settings of Agent/TCP/Sack1, which is one-way: sequence numbers count packets.
Agent/TCP set packetSize_ $segment_bytes
Agent/TCP set tcpip_base_hdr_size_ 40
Agent/TCP set timestamps_ true
Agent/TCP set ts_option_size_ 12
Agent/TCP set ts_resetRTO_ true
Agent/TCP set window_ [expr {$setting(window-bytes) / $segment_bytes}]
Agent/TCP set windowInit_ $setting(initial-window)
Agent/TCP set delay_growth_ false
Agent/TCP set singledup_ 1
Agent/TCP set tcpTick_ 0.001
Agent/TCP set minrto_ 1.0
Agent/TCP set rtxcur_init_ 1.0
Agent/TCPSink set packetSize_ 52
Agent/TCPSink/Sack1/DelAck set interval_ 200ms

set ns [new Simulator]
$ns use-scheduler $setting(scheduler)

# ns-2 counts the packet in transmission against the limit and refuses the one
# that would reach it, so the limit is one higher to hold as many waiting
# packets as the other simulators.
proc connect_nodes {first second mbps delay_ms packets} {
    global ns
    $ns duplex-link $first $second [expr {$mbps * 1e6}] [expr {$delay_ms / 1e3}] DropTail
    $ns queue-limit $first $second [expr {$packets + 1}]
    $ns queue-limit $second $first [expr {$packets + 1}]
}
proc connect_access {first second delay_ms} {
    global setting
    connect_nodes $first $second $setting(access-mbps) $delay_ms $setting(access-buffer)
}
# Counters only; monitor-queue would add unused integrators.
proc count_packets {first second} {
    global ns
    set monitor [new QueueMonitor]
    [$ns link $first $second] attach-monitors \
        [new SnoopQueue/In] [new SnoopQueue/Out] [new SnoopQueue/Drop] $monitor
    return $monitor
}

set core1 [$ns node]
set core2 [$ns node]
connect_nodes $core1 $core2 $setting(bottleneck-mbps) 0 $setting(buffer)
set forward [count_packets $core1 $core2]
set backward [count_packets $core2 $core1]

set receiver_monitors {}
for {set i 0} {$i < $setting(vpns)} {incr i} {
    set sender [$ns node]
    set ingress [$ns node]
    set egress [$ns node]
    set receiver [$ns node]
    connect_access $sender $ingress 0
    connect_access $ingress $core1 [lindex $delays_ms $i]
    connect_access $core2 $egress 0
    connect_access $egress $receiver 0
    lappend receiver_monitors [count_packets $egress $receiver]
    for {set flow 0} {$flow < $setting(flows)} {incr flow} {
        set tcp [new Agent/TCP/Sack1]
        set sink [new Agent/TCPSink/Sack1/DelAck]
        $ns attach-agent $sender $tcp
        $ns attach-agent $receiver $sink
        $ns connect $tcp $sink
        set bulk [new Application/FTP]
        $bulk attach-agent $tcp
        $ns at $setting(start) "$bulk start"
    }
}

set background_source [$ns node]
set background_sink [$ns node]
connect_access $background_source $core1 0
connect_access $core2 $background_sink 0
set background_sent [count_packets $background_source $core1]
set background_received [count_packets $core2 $background_sink]
if {$setting(background-mbps) > 0} {
    set udp [new Agent/UDP]
    $udp set packetSize_ $packet_bytes
    set null [new Agent/Null]
    $ns attach-agent $background_source $udp
    $ns attach-agent $background_sink $null
    $ns connect $udp $null
    set generator [new RNG]
    $generator seed $setting(seed)
    # Bursts of one packet with exponential pauses are Poisson arrivals.
    set background [new Application/Traffic/Exponential]
    $background use-rng $generator
    $background set packetSize_ $packet_bytes
    $background set rate_ 1e15
    $background set burst_time_ 0
    $background set idle_time_ [expr {$packet_bytes * 8 / ($setting(background-mbps) * 1e6)}]
    $background attach-agent $udp
    $ns at 0 "$background start"
}

proc note_start {} {
    global forward arrived_before dropped_before
    set arrived_before [$forward set parrivals_]
    set dropped_before [$forward set pdrops_]
}

proc print_result {} {
    global ns setting forward backward receiver_monitors arrived_before dropped_before
    global background_sent background_received

    # The number of an event is the count of events scheduled before it.
    set events [$ns at $setting(stop) {}]
    set vpn_mbps {}
    set tcp_delivered 0
    foreach monitor $receiver_monitors {
        incr tcp_delivered [$monitor set pdepartures_]
        lappend vpn_mbps [format %.4f \
            [expr {[$monitor set bdepartures_] * 8 / 1e6 / ($setting(stop) - $setting(start))}]]
    }
    set background_delivered [$background_received set pdepartures_]
    set tcp_arrived [expr {[$forward set parrivals_] - [$background_sent set pdepartures_]}]
    # Two links before the bottleneck, three from it on; acknowledgments cross
    # five. Packets in transit at the end are counted up to the last counter.
    set packet_hops [expr {2 * $tcp_arrived + 3 * $tcp_delivered + 5 * [$backward set pdepartures_]
        + [$background_sent set pdepartures_] + 2 * $background_delivered}]
    set arrived [expr {[$forward set parrivals_] - $arrived_before}]
    set dropped [expr {[$forward set pdrops_] - $dropped_before}]
    puts [format {{"peer":"ns-2","version":"%s","case":"%s","seed":%d,"vpn_mbps":[%s],"delivered_packets":%.0f,"packet_hops":%.0f,"bottleneck_loss":%.6f,"events":%.0f}} \
        [ns-version] $setting(case) $setting(seed) [join $vpn_mbps ,] \
        [expr {double($tcp_delivered + $background_delivered)}] [expr {double($packet_hops)}] \
        [expr {double($dropped) / $arrived}] [expr {double($events)}]]
    flush stdout
    exit 0
}

$ns at $setting(start) note_start
$ns at $setting(stop) print_result
$ns run
