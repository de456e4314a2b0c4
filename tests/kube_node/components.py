"""Command lines and configuration files of every component. Pure; boot.py writes the files and starts the commands.

All paths are those inside the cluster's namespaces (layout.INSIDE), so they are the same in every cluster. An unusual
value has its reason in a comment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from scripts.setup import ROOT
from tests.kube_node import binaries
from tests.kube_node.layout import (
    API_PORT,
    DNS_SERVICE,
    DOMAIN,
    INSIDE,
    NODE,
    POD_CIDR,
    SERVICE_CIDR,
    Layout,
)
from tests.kube_node.requirements import CNI_PLUGINS, PATH

PAUSE = "rstar2.test/pause:1"
CONTAINERD = "/run/containerd/containerd.sock"
PKI = INSIDE / "pki"
CONTROL_PLANE = (
    "etcd",
    "kube-apiserver",
    "containerd",
)  # started first; the others follow when the API server is ready


def kubeconfig(client: str) -> str:
    return str(INSIDE / f"{client}.kubeconfig")


def apiserver(layout: Layout) -> list[str]:
    return [
        binaries.path_of("kube-apiserver"),
        f"--secure-port={API_PORT}",
        f"--advertise-address={layout.node_address}",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--client-ca-file={PKI / 'ca.crt'}",
        f"--tls-cert-file={PKI / 'apiserver.crt'}",
        f"--tls-private-key-file={PKI / 'apiserver.key'}",
        f"--kubelet-client-certificate={PKI / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={PKI / 'apiserver-kubelet.key'}",
        f"--kubelet-certificate-authority={PKI / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",  # nothing resolves the node's name
        f"--service-account-key-file={PKI / 'service-accounts.key'}",
        f"--service-account-signing-key-file={PKI / 'service-accounts.key'}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={INSIDE / 'audit-policy.yaml'}",
        f"--audit-log-path={INSIDE / 'audit.log'}",
        "--profiling=false",
    ]


def controller_manager() -> list[str]:
    return [
        binaries.path_of("kube-controller-manager"),
        f"--kubeconfig={kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={PKI / 'service-accounts.key'}",
        f"--root-ca-file={PKI / 'ca.crt'}",
        "--use-service-account-credentials=true",
        "--flex-volume-plugin-dir=/var/lib/kubelet/plugins-exec",  # as in kubelet_config
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--pvclaimbinder-sync-period=1s",  # a claim that it reads before its volume is bound only in the next round
    ]


def scheduler() -> list[str]:
    config = f"--kubeconfig={kubeconfig('scheduler')}"
    return [binaries.path_of("kube-scheduler"), config, "--leader-elect=false", "--bind-address=127.0.0.1"]


def kubelet(layout: Layout) -> list[str]:
    return [
        binaries.path_of("kubelet"),
        f"--kubeconfig={kubeconfig('kubelet')}",
        f"--config={INSIDE / 'kubelet.json'}",
        f"--hostname-override={NODE}",
        f"--node-ip={layout.node_address}",
    ]


def services(layout: Layout) -> dict[str, dict[str, Any]]:
    """Return every service for init.py: name -> command and environment."""
    etcd = ["etcd", f"--data-dir={INSIDE / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"]
    commands = {
        "etcd": etcd,
        "kube-apiserver": apiserver(layout),
        "containerd": ["containerd", "--config", str(INSIDE / "containerd.toml"), "--log-level", "warn"],
        "kube-controller-manager": controller_manager(),
        "kube-scheduler": scheduler(),
        "kubelet": kubelet(layout),
        "kube-proxy": [
            binaries.path_of("kube-proxy"),
            f"--config={INSIDE / 'proxy.json'}",
            f"--hostname-override={NODE}",
        ],
        "agent": [sys.executable, "-m", "tests.kube_node.agent", kubeconfig("admin")],
    }
    return {name: service(command) for name, command in commands.items()}


def service(command: list[str]) -> dict[str, Any]:
    """Return a service with the environment that all of them share."""
    path = os.pathsep.join([binaries.search_path(), PATH])
    env = {"PATH": path, "HOME": "/var/tmp", "TMPDIR": "/var/tmp", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    return {"command": command, "env": env}


# ------------------------------------------------------------------------------------------------- files


def kubelet_config() -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(PKI / "ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(PKI / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "cgroupDriver": "cgroupfs",
        "volumePluginDir": "/var/lib/kubelet/plugins-exec",  # the default lies under /usr
        "failSwapOn": False,
        "oomScoreAdj": 0,  # lower ones need CAP_SYS_RESOURCE
        "makeIPTablesUtilChains": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": str(INSIDE / "resolv.conf"),
        "serializeImagePulls": False,
        "imageGCHighThresholdPercent": 100,  # images are loaded from archives and cannot be pulled again
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 250,
        "shutdownGracePeriod": "0s",
    }


def proxy_config() -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig("proxy")},
        "mode": "nftables",
        "clusterCIDR": POD_CIDR,
        "bindAddress": "127.0.0.1",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        # The limits of connection tracking belong to the machine: a network namespace cannot set them.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def containerd_config() -> str:
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
address = "{CONTAINERD}"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{INSIDE}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{INSIDE}/runsc.toml"
"""


def cni_config() -> dict[str, Any]:
    """Return the CNI configuration: one routed veth per pod, so that traffic between pods crosses the forward hook."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": "0.4.0",
        "name": "rstar2",
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam, "mtu": 1500}],
    }


def masquerade() -> str:
    """Return the nftables rules that give traffic from pods to this machine the node's address."""
    return f"""table ip rstar2-nat {{
  chain postrouting {{
    type nat hook postrouting priority 100;
    ip saddr {POD_CIDR} oifname "eth0" masquerade
  }}
}}
"""


AUDIT_POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
# Reads and renewals of the cluster's own components: the log would be too long for a test to read.
- level: None
  users: ["system:apiserver", "system:kube-scheduler", "system:kube-proxy", "system:kube-controller-manager"]
  verbs: [get, list, watch]
- {level: None, userGroups: ["system:nodes", "system:serviceaccounts:kube-system"], verbs: [get, list, watch]}
- {level: None, userGroups: ["system:nodes"], resources: [{group: coordination.k8s.io}]}
- {level: None, nonResourceURLs: ["/*"]}
# The status that the operator wrote, not only the fact that it wrote one.
- {level: Request, verbs: [patch], resources: [{group: rstar2.dev, resources: [agenticrljobs/status]}]}
- {level: Metadata}
"""


def files(layout: Layout) -> dict[str, str]:
    """Return file name in the cluster's folder -> content."""
    return {
        "kubelet.json": json.dumps(kubelet_config(), indent=1),
        "proxy.json": json.dumps(proxy_config(), indent=1),
        "containerd.toml": containerd_config(),
        "runsc.toml": '[runsc_config]\nplatform = "systrap"\n',
        "cni/10-rstar2.conflist": json.dumps(cni_config(), indent=1),
        "audit-policy.yaml": AUDIT_POLICY,
        "resolv.conf": f"search {DOMAIN}\n",
        "nat.nft": masquerade(),
    }
