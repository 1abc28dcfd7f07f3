#!/usr/bin/env bash
# Boots systemd in the container image of scripts/image.sh and tests the package's services: the controller of a fleet,
# and an agent that joins it, takes part in live runs, and joins again under another name. Then removes the package.
# Exits with 4 if podman or the image is missing.
set -euo pipefail

if ! podman image exists netstage; then
    echo "services not tested: podman or the image is missing; run make image" >&2
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
    # 5: the measurement is void, because the machine was too busy to send on time.
    netstage run two.toml --on live --out "out/$2" || [ $? = 5 ]
}
join other --state other
netstage agent --state other 2>/dev/null &
join first
sed -i -e 's/^controllers = .*/controllers = ["lab"]/' -e '/^destinations/d' /etc/netstage/agent.toml
echo 'one_ended = true' >>/etc/netstage/agent.toml
systemctl enable --quiet --now netstage-agent
run first once
netstage fleet policies | grep --extended-regexp --quiet "^first +enforced-by +kernel"

# systemd restarts a killed controller, and the agents reconnect.
systemctl kill --signal KILL netstage-fleet
run first again

# Joins again under another name, as root, in the folder that belongs to the service's dynamic user.
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
# The fleet's folder stays.
[ -e "$NETSTAGE_FLEET/fleet.json" ]
echo "services: controller restarted after a kill, agent joined twice, both removed with the package"
END
