// Command kubernetes is the programs of a cluster but for the kubelet in one: which it is says the name by which it was
// called, or the first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // zones of CronJobs

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
)

var servers = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

var programs = map[string]func(){
	"etcd":    func() { etcd.Main(os.Args) },
	"kubeadm": func() { kubeadmerrors.HandleError(kubeadm.Run()) },
	"kubectl": func() {
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	},
}

func main() {
	if run(filepath.Base(os.Args[0])) {
		return
	}
	if len(os.Args) > 1 {
		os.Args = os.Args[1:]
		if run(os.Args[0]) {
			return
		}
	}
	fmt.Fprintln(os.Stderr, "kubernetes: call it by the name of a program of Kubernetes, or name one first")
	os.Exit(2)
}

// run runs the named program, and returns false when there is none.
func run(name string) bool {
	if server, found := servers[name]; found {
		os.Exit(cli.Run(server()))
	}
	program, found := programs[name]
	if found {
		program()
	}
	return found
}
