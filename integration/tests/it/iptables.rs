//! Chains of iptables that other components look for.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::node::{Node, system};
use berth_integration::vm::Feature;
use berth_integration::wait::{self, Look};
use serde_json::json;

use crate::kit::{inside, pod, shell, sleeper};
use crate::suite::{Test, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("iptables::chains_come_back_after_a_flush", flushed).needs(Feature::Nat).long(),
        test("iptables::none_where_nobody_wants_them", unwanted).needs(Feature::Nat),
        test("iptables::cve_2020_8558_neighbours_do_not_reach_the_nodes_loopback", neighbours)
            .needs(Feature::Nat),
    ]
}

/// A canary is looked at every minute.
const WITHIN: Duration = Duration::from_secs(100);

/// What there is of Kubernetes in the tables, without the order of rules.
fn chains() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (program, table) in
        [("iptables", "mangle"), ("iptables", "nat"), ("iptables", "filter"), ("ip6tables", "mangle")]
    {
        let text = system(program, &["-w", "5", "-t", table, "-S"])?;
        let lines = text.lines().filter(|line| line.contains("KUBE-"));
        all.extend(lines.map(|line| format!("{program} {table} {line}")));
    }
    all.sort();
    Ok(all)
}

fn wanted() -> Vec<String> {
    let rule = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
                -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
    let mut all: Vec<String> = [
        "iptables mangle -N KUBE-IPTABLES-HINT",
        "iptables mangle -N KUBE-KUBELET-CANARY",
        "iptables nat -N KUBE-KUBELET-CANARY",
        "iptables filter -N KUBE-FIREWALL",
        "iptables filter -N KUBE-KUBELET-CANARY",
        "iptables filter -A INPUT -j KUBE-FIREWALL",
        "iptables filter -A OUTPUT -j KUBE-FIREWALL",
        "ip6tables mangle -N KUBE-IPTABLES-HINT",
        "ip6tables mangle -N KUBE-KUBELET-CANARY",
    ]
    .map(str::to_owned)
    .into();
    all.push(format!("iptables filter {rule}"));
    all.sort();
    all
}

fn are_there() -> Result<()> {
    let wanted = wanted();
    wait::until("the chains", WITHIN, || {
        let found = chains()?;
        Ok(if found == wanted { Look::Ready(()) } else { Look::NotYet(format!("{found:#?}")) })
    })
}

fn flushed() -> Result<()> {
    let node = Node::start()?;
    are_there()?;
    for (program, table) in
        [("iptables", "filter"), ("iptables", "nat"), ("iptables", "mangle"), ("ip6tables", "mangle")]
    {
        for what in ["-F", "-X"] {
            system(program, &["-w", "5", "-t", table, what])?;
        }
    }
    are_there()?;
    node.end()
}

fn unwanted() -> Result<()> {
    let kubelet = json!({ "makeIPTablesUtilChains": false });
    let node = Node::start_with(&Settings { kubelet, ..Settings::default() })?;
    node.apply("web", &sleeper("web"))?;
    node.ready("web")?;
    let found = chains()?;
    ensure!(found.is_empty(), "{found:#?}");
    node.end()
}

/// The node routes to its loopback, as kube-proxy has it do: then the chains alone keep out who sends there by its gateway.
fn neighbours() -> Result<()> {
    fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1")?;
    for has_chains in [false, true] {
        let kubelet = json!({ "makeIPTablesUtilChains": has_chains });
        let node = Node::start_with(&Settings { kubelet, ..Settings::default() })?;
        if has_chains {
            are_there()?;
        }
        let service = TcpListener::bind("127.0.0.1:0")?;
        service.set_nonblocking(true)?;
        let port = service.local_addr()?.port();
        let send = format!(
            "gateway=$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'); echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; \
             ip addr flush dev lo; ip route add 127.0.0.0/8 via $gateway && timeout 3 nc 127.0.0.1 {port} </dev/null; true"
        );
        let main = shell("main", "exec sleep infinity", json!({ "securityContext": { "privileged": true } }));
        node.apply("neighbour", &pod("neighbour", json!({ "containers": [main] })))?;
        let said = inside(&node.ready("neighbour")?, &send)?;
        let is_reached = service.accept().is_ok();
        ensure!(is_reached != has_chains, "reached: {is_reached}, with chains: {has_chains}: {said}");
        node.clear()?;
        node.end()?;
    }
    Ok(())
}
