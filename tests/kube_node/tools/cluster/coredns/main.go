// CoreDNS with the plugins that the test cluster's Corefile (tests/kube_node/system.yaml) names, and no others: the usual
// set brings several clouds' libraries and takes four times as long to build. Built by tests/kube_node/binaries.py.
package main

import (
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"

	"github.com/coredns/coredns/coremain"
)

func main() {
	coremain.Run()
}
