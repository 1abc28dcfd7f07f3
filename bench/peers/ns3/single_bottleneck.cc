// The single-bottleneck network of the I2VFC paper (section 3.1), without
// control, in ns-3: bulk TCP flows of several VPNs and Poisson UDP background
// share one drop-tail link. Prints one JSON line; its fields, and the settings
// equal in all simulators, are described in bench/sim/README.md.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/version-defines.h"

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint32_t kSegmentBytes = 1448;
constexpr uint32_t kBackgroundPayloadBytes = 1472; // 1500 B with UDP and IP headers
constexpr uint32_t kPppHeaderBytes = 2;            // added by PointToPointNetDevice
constexpr uint16_t kTcpPort = 5001;
constexpr uint16_t kBackgroundPort = 9;

struct Settings
{
    std::string caseName = "custom";
    uint32_t vpns = 4;
    uint32_t flows = 2;
    double bottleneckMbps = 50;
    uint32_t bottleneckPackets = 50;
    double accessMbps = 1000;
    uint32_t accessPackets = 1000;
    double backgroundMbps = 15;
    uint32_t windowBytes = 65536;
    uint32_t initialWindow = 10;
    std::string delaysMs = "50,25,75,50,25";
    double startSeconds = 5;
    double stopSeconds = 50;
    uint32_t seed = 1;
    std::string congestionControl = "TcpNewReno";
    std::string recovery = "TcpClassicRecovery";
};

struct Arrivals
{
    uint64_t packets = 0;
    uint64_t bytes = 0;
};

void
CountArrival(Arrivals* arrivals, Ptr<const Packet> packet)
{
    arrivals->packets++;
    arrivals->bytes += packet->GetSize() - kPppHeaderBytes;
}

void
DiscardReceived(Ptr<Socket> socket)
{
    while (socket->Recv())
    {
    }
}

// UDP packets of one size with exponential gaps.
class PoissonSource
{
  public:
    PoissonSource(Ptr<Node> node, const Address& destination, double ipMbps)
        : m_socket(Socket::CreateSocket(node, UdpSocketFactory::GetTypeId())),
          m_gapSeconds(CreateObject<ExponentialRandomVariable>())
    {
        m_gapSeconds->SetAttribute("Mean", DoubleValue(1500 * 8 / (ipMbps * 1e6)));
        m_socket->Bind();
        m_socket->Connect(destination);
        ScheduleNext();
    }

  private:
    void ScheduleNext()
    {
        Simulator::Schedule(Seconds(m_gapSeconds->GetValue()), &PoissonSource::Send, this);
    }

    void Send()
    {
        m_socket->Send(Create<Packet>(kBackgroundPayloadBytes));
        ScheduleNext();
    }

    Ptr<Socket> m_socket;
    Ptr<ExponentialRandomVariable> m_gapSeconds;
};

// Links two nodes, assigns addresses from the next free /30 and counts packets
// that arrive at either end.
class Wiring
{
  public:
    struct Link
    {
        Ptr<PointToPointNetDevice> first;
        Ptr<PointToPointNetDevice> second;
        Ipv4Address firstAddress;
        Ipv4Address secondAddress;
        Arrivals* atSecond;
    };

    Link Connect(Ptr<Node> first,
                 Ptr<Node> second,
                 double mbps,
                 const std::string& delayMs,
                 uint32_t queuePackets)
    {
        PointToPointHelper helper;
        helper.SetDeviceAttribute("DataRate",
                                  DataRateValue(DataRate(static_cast<uint64_t>(mbps * 1e6))));
        helper.SetChannelAttribute("Delay", StringValue(delayMs + "ms"));
        helper.SetQueue("ns3::DropTailQueue<Packet>",
                        "MaxSize",
                        StringValue(std::to_string(queuePackets) + "p"));
        // Otherwise a traffic-control queue would precede each device's queue,
        // and the drop-tail buffer would exceed the requested one.
        helper.DisableFlowControl();
        NetDeviceContainer devices = helper.Install(first, second);
        Ipv4InterfaceContainer interfaces = m_addresses.Assign(devices);
        m_addresses.NewNetwork();

        Link link;
        link.first = DynamicCast<PointToPointNetDevice>(devices.Get(0));
        link.second = DynamicCast<PointToPointNetDevice>(devices.Get(1));
        link.firstAddress = interfaces.GetAddress(0);
        link.secondAddress = interfaces.GetAddress(1);
        CountAt(link.first);
        link.atSecond = CountAt(link.second);
        return link;
    }

    uint64_t PacketHops() const
    {
        uint64_t hops = 0;
        for (const auto& arrivals : m_arrivals)
        {
            hops += arrivals->packets;
        }
        return hops;
    }

  private:
    Arrivals* CountAt(Ptr<PointToPointNetDevice> device)
    {
        m_arrivals.push_back(std::make_unique<Arrivals>());
        Arrivals* arrivals = m_arrivals.back().get();
        device->TraceConnectWithoutContext("PhyRxEnd",
                                           MakeBoundCallback(&CountArrival, arrivals));
        return arrivals;
    }

    Ipv4AddressHelper m_addresses{"10.0.0.0", "255.255.255.252"};
    std::vector<std::unique_ptr<Arrivals>> m_arrivals;
};

Settings
ReadSettings(int argc, char* argv[])
{
    Settings s;
    CommandLine cmd;
    cmd.AddValue("case", "name of the case, repeated in the result", s.caseName);
    cmd.AddValue("vpns", "number of VPNs", s.vpns);
    cmd.AddValue("flows", "TCP flows per VPN", s.flows);
    cmd.AddValue("bottleneck-mbps", "bottleneck rate", s.bottleneckMbps);
    cmd.AddValue("buffer", "bottleneck buffer in packets", s.bottleneckPackets);
    cmd.AddValue("access-mbps", "rate of every other link", s.accessMbps);
    cmd.AddValue("access-buffer", "buffer of every other link in packets", s.accessPackets);
    cmd.AddValue("background-mbps", "mean rate of the background, IP layer", s.backgroundMbps);
    cmd.AddValue("window-bytes", "limit of the TCP window", s.windowBytes);
    cmd.AddValue("initial-window", "initial TCP window in segments", s.initialWindow);
    cmd.AddValue("delays-ms", "one-way delay of each VPN's ingress link", s.delaysMs);
    cmd.AddValue("start", "start of the TCP flows in seconds", s.startSeconds);
    cmd.AddValue("stop", "end of the simulation in seconds", s.stopSeconds);
    cmd.AddValue("seed", "seed", s.seed);
    cmd.AddValue("congestion-control", "ns-3 type", s.congestionControl);
    cmd.AddValue("recovery", "ns-3 type", s.recovery);
    cmd.Parse(argc, argv);
    return s;
}

void
ConfigureTcp(const Settings& s)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeIdValue(TypeId::LookupByName("ns3::" + s.congestionControl)));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeIdValue(TypeId::LookupByName("ns3::" + s.recovery)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::LimitedTransmit", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MilliSeconds(1)));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegmentBytes));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(s.initialWindow));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(200)));
    // The send buffer is the window limit: it bounds the unacknowledged data as
    // the advertised window would. ns-3 3.37 requests an empty segment from its
    // buffer, and dereferences null, if a sender in SACK recovery has filled the
    // advertised window exactly.
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(s.windowBytes));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(2 * s.windowBytes));
}

std::vector<std::string>
SplitCommas(const std::string& text)
{
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');)
    {
        parts.push_back(part);
    }
    return parts;
}

void
DefaultRoute(Ptr<Node> node, Ipv4Address gateway, Ptr<NetDevice> device)
{
    Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
    Ipv4StaticRoutingHelper()
        .GetStaticRouting(ipv4)
        ->SetDefaultRoute(gateway, ipv4->GetInterfaceForDevice(device));
}

void
HostRoute(Ptr<Node> node, Ipv4Address host, Ipv4Address gateway, Ptr<NetDevice> device)
{
    Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
    Ipv4StaticRoutingHelper()
        .GetStaticRouting(ipv4)
        ->AddHostRouteTo(host, gateway, ipv4->GetInterfaceForDevice(device));
}

} // namespace

int
main(int argc, char* argv[])
{
    const Settings s = ReadSettings(argc, argv);
    const std::vector<std::string> delays = SplitCommas(s.delaysMs);
    if (delays.size() < s.vpns)
    {
        std::fprintf(stderr, "--delays-ms gives %zu delays for %u VPNs\n", delays.size(), s.vpns);
        return 2;
    }
    RngSeedManager::SetSeed(s.seed);
    ConfigureTcp(s);

    // Only static IPv4 routing, the cheapest in ns-3.
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(Ipv4StaticRoutingHelper());
    NodeContainer core;
    core.Create(2);
    NodeContainer backgroundHosts;
    backgroundHosts.Create(2);
    NodeContainer senders;
    senders.Create(s.vpns);
    NodeContainer ingress;
    ingress.Create(s.vpns);
    NodeContainer egress;
    egress.Create(s.vpns);
    NodeContainer receivers;
    receivers.Create(s.vpns);
    stack.InstallAll();

    Wiring wiring;
    const auto access = [&](Ptr<Node> first, Ptr<Node> second, const std::string& delayMs) {
        return wiring.Connect(first, second, s.accessMbps, delayMs, s.accessPackets);
    };
    const Wiring::Link bottleneck = wiring.Connect(core.Get(0),
                                                   core.Get(1),
                                                   s.bottleneckMbps,
                                                   "0",
                                                   s.bottleneckPackets);
    DefaultRoute(core.Get(0), bottleneck.secondAddress, bottleneck.first);
    DefaultRoute(core.Get(1), bottleneck.firstAddress, bottleneck.second);

    std::vector<Arrivals*> received;
    for (uint32_t i = 0; i < s.vpns; ++i)
    {
        const auto sender = access(senders.Get(i), ingress.Get(i), "0");
        const auto ingressCore = access(ingress.Get(i), core.Get(0), delays[i]);
        const auto coreEgress = access(core.Get(1), egress.Get(i), "0");
        const auto receiver = access(egress.Get(i), receivers.Get(i), "0");
        received.push_back(receiver.atSecond);

        DefaultRoute(senders.Get(i), sender.secondAddress, sender.first);
        DefaultRoute(ingress.Get(i), ingressCore.secondAddress, ingressCore.first);
        HostRoute(core.Get(0), sender.firstAddress, ingressCore.firstAddress, ingressCore.second);
        HostRoute(core.Get(1), receiver.secondAddress, coreEgress.secondAddress, coreEgress.first);
        DefaultRoute(egress.Get(i), coreEgress.firstAddress, coreEgress.second);
        DefaultRoute(receivers.Get(i), receiver.firstAddress, receiver.second);

        PacketSinkHelper sink("ns3::TcpSocketFactory",
                              InetSocketAddress(Ipv4Address::GetAny(), kTcpPort));
        sink.Install(receivers.Get(i)).Start(Seconds(0));
        BulkSendHelper bulk("ns3::TcpSocketFactory",
                            InetSocketAddress(receiver.secondAddress, kTcpPort));
        bulk.SetAttribute("SendSize", UintegerValue(kSegmentBytes));
        for (uint32_t flow = 0; flow < s.flows; ++flow)
        {
            bulk.Install(senders.Get(i)).Start(Seconds(s.startSeconds));
        }
    }

    const auto backgroundIn = access(backgroundHosts.Get(0), core.Get(0), "0");
    const auto backgroundOut = access(core.Get(1), backgroundHosts.Get(1), "0");
    DefaultRoute(backgroundHosts.Get(0), backgroundIn.secondAddress, backgroundIn.first);
    DefaultRoute(backgroundHosts.Get(1), backgroundOut.firstAddress, backgroundOut.second);
    Ptr<Socket> backgroundSink =
        Socket::CreateSocket(backgroundHosts.Get(1), UdpSocketFactory::GetTypeId());
    backgroundSink->Bind(InetSocketAddress(Ipv4Address::GetAny(), kBackgroundPort));
    backgroundSink->SetRecvCallback(MakeCallback(&DiscardReceived));
    std::unique_ptr<PoissonSource> background;
    if (s.backgroundMbps > 0)
    {
        background = std::make_unique<PoissonSource>(
            backgroundHosts.Get(0),
            InetSocketAddress(backgroundOut.secondAddress, kBackgroundPort),
            s.backgroundMbps);
    }

    const Ptr<Queue<Packet>> queue = bottleneck.first->GetQueue();
    uint64_t acceptedBefore = 0;
    uint64_t droppedBefore = 0;
    Simulator::Schedule(Seconds(s.startSeconds), [&]() {
        acceptedBefore = queue->GetTotalReceivedPackets();
        droppedBefore = queue->GetTotalDroppedPackets();
    });
    Simulator::Stop(Seconds(s.stopSeconds));
    Simulator::Run();

    const double accepted = queue->GetTotalReceivedPackets() - acceptedBefore;
    const double dropped = queue->GetTotalDroppedPackets() - droppedBefore;
    uint64_t delivered = backgroundOut.atSecond->packets;
    std::string vpnMbps;
    for (const Arrivals* arrivals : received)
    {
        delivered += arrivals->packets;
        const double mbps = arrivals->bytes * 8.0 / 1e6 / (s.stopSeconds - s.startSeconds);
        char text[32];
        std::snprintf(text, sizeof text, "%s%.4f", vpnMbps.empty() ? "" : ",", mbps);
        vpnMbps += text;
    }
    std::printf("{\"peer\":\"ns-3\",\"version\":\"%d.%d (%s)\",\"case\":\"%s\",\"seed\":%u,"
                "\"vpn_mbps\":[%s],\"delivered_packets\":%llu,\"packet_hops\":%llu,"
                "\"bottleneck_loss\":%.6f,\"events\":%llu}\n",
                NS3_VERSION_MAJOR,
                NS3_VERSION_MINOR,
                NS3_VERSION_BUILD_PROFILE,
                s.caseName.c_str(),
                s.seed,
                vpnMbps.c_str(),
                static_cast<unsigned long long>(delivered),
                static_cast<unsigned long long>(wiring.PacketHops()),
                dropped / (accepted + dropped),
                static_cast<unsigned long long>(Simulator::GetEventCount()));
    std::fflush(stdout);
    Simulator::Destroy();
    return 0;
}
