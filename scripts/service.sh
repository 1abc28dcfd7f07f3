#!/usr/bin/env bash
# Boots a systemd in the container image that scripts/image.sh has made, and has the package's services there be a
# fleet's controller and an agent that joins it, is an end of a live run, and joins anew; then both go with their
# package. Exits with 4 where podman is missing.
set -euo pipefail

if ! podman image exists netstage; then
    echo "the service was not tested: it needs podman, and the image that make image makes" >&2
    exit 4
fi
container=netstage-service-$$
trap 'podman rm --force --time 0 "$container" >/dev/null; podman image rm netstage-service >/dev/null' EXIT
podman build --quiet --network host -t netstage-service - >/dev/null <<'END'
FROM localhost/netstage
RUN apt-get update && apt-get install -y --no-install-recommends systemd && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/lib/systemd/systemd"]
CMD []
END
podman run --detach --name "$container" --systemd=always --privileged netstage-service >/dev/null
podman exec --interactive "$container" bash -eus <<'END'
until systemctl is-active --quiet basic.target; do sleep 0.2; done
cd /root
export NETSTAGE_FLEET=/var/lib/netstage/fleet
netstage fleet init --name lab >/dev/null
systemctl enable --quiet --now netstage-fleet
until [ -S "$NETSTAGE_FLEET/hub.sock" ]; do
    systemctl is-active --quiet netstage-fleet || { journalctl --unit netstage-fleet --no-pager; exit 1; }
    sleep 0.1
done
join() {
    netstage fleet join 127.0.0.1:4700 "$(netstage fleet token "$1")" "${@:2}" >/dev/null
}
run() {
    for seconds in {1..60}; do
        [ "$(netstage fleet ls | grep -c idle)" -lt 2 ] || break
        [ "$seconds" -lt 60 ] || { journalctl --unit "netstage-*" --no-pager; exit 1; }
        sleep 1
    done
    sed "s/SERVICE/$1/" >two.toml <<'SCENARIO'
[scenario]
title = "The service and another agent"
duration = "3 s"
[node.left]
[node.right]
[link.wire]
ends = ["left", "right"]
rate = "100 Mbit/s"
[flow.there]
from = "left"
to = "right"
transport = "udp"
traffic = { model = "cbr", rate = "800 kbit/s", packet = "200 B" }
[flow.back]
from = "right"
to = "left"
traffic = { model = "cbr", rate = "5 Mbit/s", packet = "1000 B" }
[flow.ping]
from = "left"
to = "right"
transport = "icmp-echo"
traffic = { model = "cbr", rate = "80 kbit/s", packet = "200 B" }
[place]
left = "SERVICE"
right = "other"
[measure]
interval = "100 ms"
SCENARIO
    # 5: the machine was too busy to keep the schedule.
    netstage run two.toml --on live --out "out/$2" || [ $? = 5 ]
}
join other --state other
netstage agent --state other 2>/dev/null &
join first
echo 'one_ended = true' >>/etc/netstage/agent.toml
systemctl enable --quiet --now netstage-agent
run first once

# A controller that is killed comes back, and its agents to it.
systemctl kill --signal KILL netstage-fleet
run first again

# Anew, under another name, by root in the folder that systemd has given away.
systemctl stop netstage-agent
rm -r /var/lib/netstage/agent/*
netstage fleet remove first >/dev/null
join second
systemctl start netstage-agent
run second anew

dpkg --purge netstage >/dev/null
for unit in netstage-agent netstage-fleet; do
    if systemctl is-active --quiet "$unit"; then exit 1; fi
done
for gone in /etc/netstage /var/lib/netstage/agent /var/lib/private/netstage; do
    [ ! -e "$gone" ]
done
# The operator's own.
[ -e "$NETSTAGE_FLEET/fleet.json" ]
echo "the services ran, one was killed and came back, the other joined anew; both went with their package"
END
