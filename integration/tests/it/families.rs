//! Nodes of IPv6 alone, and of both families.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, ADDRESS, ADDRESS_V6, Cluster};
use berth_integration::cni;
use berth_integration::lab::World;
use berth_integration::node::{Node, system};
use berth_integration::vm::Feature;
use serde_json::{Value, json};

use crate::api_pods::{PODS, audit_of, patches};
use crate::kit::{FOR_EVER, inside, page, pod, shell, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("families::both_with_the_first_of_the_node_first", both).needs(Feature::Nat),
        test("families::ipv6_alone", v6_alone).needs(Feature::Nat),
    ]
}

const SUBNET_V6: &str = "fd00:10:88::/64";
const PORT: u16 = 8080;
const HOST_PORT: u16 = 18080;

/// Gives the lab addresses of IPv6, and a way out that leads nowhere.
fn add_v6() -> Result<()> {
    for file in ["ipv6/conf/all/forwarding", "ipv6/conf/default/forwarding"] {
        fs::write(format!("/proc/sys/net/{file}"), "1")?;
    }
    ip(&["-6", "address", "add", &format!("{ADDRESS_V6}/64"), "dev", "uplink", "nodad"])?;
    ip(&["-6", "route", "add", "default", "via", "2001:db8::1"])
}

fn ip(args: &[&str]) -> Result<()> {
    system("ip", args).map(drop)
}

/// The lab's network with addresses of these subnets.
fn network(node: &Node, subnets: &[&str]) -> Result<()> {
    let mut network = cni::network(&node.world.root().join("leases"));
    let ipam = &mut network["plugins"][0]["ipam"];
    ipam["ranges"] = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    let everywhere = |subnet: &&str| if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
    ipam["routes"] = subnets.iter().map(|subnet| json!({ "dst": everywhere(subnet) })).collect();
    cni::write(node.cni_conf(), &network)
}

fn start(address: IpAddr, subnets: &[&str], flags: &[String]) -> Result<(Cluster, Node)> {
    let settings = cluster::Settings { address, ..cluster::Settings::default() };
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &settings)?;
    let mut node = Node::prepare(&Settings::default())?;
    network(&node, subnets)?;
    let mut all = vec![format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display())];
    all.extend_from_slice(flags);
    node.agent.set_flags(&all);
    node.agent.start()?;
    Ok((cluster, node))
}

/// A pod that serves what it knows of its addresses, and is asked whether it does.
fn web() -> Result<Value> {
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let env = json!([
        { "name": "POD_IP", "valueFrom": field("status.podIP") },
        { "name": "POD_IPS", "valueFrom": field("status.podIPs") },
        { "name": "HOST_IP", "valueFrom": field("status.hostIP") },
        { "name": "HOST_IPS", "valueFrom": field("status.hostIPs") },
    ]);
    let script = format!(
        "mkdir /www; echo $POD_IP $POD_IPS $HOST_IP $HOST_IPS >/www/index.html; httpd -p {PORT} -h /www; {FOR_EVER}"
    );
    // An answer that is late is none that changes the pod, and what is told of it.
    let get = json!({ "path": "/", "port": PORT });
    let probe = json!({ "httpGet": get, "periodSeconds": 1, "timeoutSeconds": 600 });
    let ports = json!([{ "containerPort": PORT, "hostPort": HOST_PORT }]);
    let main = shell("main", &script, json!({ "env": env, "readinessProbe": probe, "ports": ports }));
    let spec = with(json!({ "nodeName": NODE_NAME }), json!({ "containers": [main] }));
    Ok(serde_json::from_str(&pod("web", spec))?)
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// The addresses of a list of `{"ip": …}` or of typed node addresses.
fn listed(list: &Value, field: &str) -> Vec<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter(|one| one["type"].is_null() || one["type"] == "InternalIP")
        .filter_map(|one| one[field].as_str().map(str::to_owned))
        .collect()
}

/// A pod is known by addresses of these families, the first one first, everywhere where they are told.
fn is_known_everywhere(cluster: &Cluster, node: &Node, hosts: &[IpAddr]) -> Result<()> {
    let object = cluster.wait_for(&format!("/api/v1/nodes/{NODE_NAME}"), "ready", is_ready)?;
    let hosts: Vec<String> = hosts.iter().map(IpAddr::to_string).collect();
    same("addresses of the node", listed(&object["status"]["addresses"], "address"), hosts.clone())?;

    cluster.create(PODS, &web()?)?;
    let status = cluster.wait_for(&format!("{PODS}/web"), "ready", is_ready)?["status"].take();
    let ips = listed(&status["podIPs"], "ip");
    let families = |ips: &[String]| ips.iter().map(|ip| ip.contains(':')).collect::<Vec<_>>();
    same("families of the pod", families(&ips), families(&hosts))?;
    same("the pod's first address", &status["podIP"], &json!(ips[0]))?;
    same("the node's first address", &status["hostIP"], &json!(hosts[0]))?;
    same("the node's addresses", listed(&status["hostIPs"], "ip"), hosts.clone())?;
    let web = node.ready("web")?;
    let known = inside(&web, "cat /etc/hosts")?;
    for ip in &ips {
        ensure!(known.lines().any(|line| line.starts_with(&format!("{ip}\t"))), "{ip} is not in {known}");
        let at = (ip.parse::<IpAddr>()?, PORT).into();
        let told = page(at, "/")?.text();
        let wanted = format!("{} {} {} {}", ips[0], ips.join(","), hosts[0], hosts.join(","));
        same(&format!("what it knows, by {ip}"), told.trim(), &wanted)?;
    }
    for host in hosts {
        let at = (host.parse::<IpAddr>()?, HOST_PORT).into();
        page(at, "/").with_context(|| format!("by the node's {host}"))?;
    }
    Ok(())
}

fn end(cluster: Cluster, node: Node) -> Result<()> {
    cluster.request("DELETE", &format!("{PODS}/web"), "application/json", &json!({}))?;
    cluster.wait_gone(&format!("{PODS}/web"))?;
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE_NAME);
    ensure!(refused.is_empty(), "the node was refused: {refused:#?}");
    node.end()?;
    cluster.end()
}

/// A pod as it is now, once its last change is in the audit log.
fn audited(cluster: &Cluster, name: &str) -> Result<Value> {
    let pod = cluster.get_json(&format!("{PODS}/{name}"))?;
    audit_of(cluster, &pod)?;
    Ok(pod)
}

fn both() -> Result<()> {
    add_v6()?;
    let ips = [IpAddr::from(ADDRESS_V6), IpAddr::from(ADDRESS)];
    let flag = format!("--node-ip={},{}", ips[0], ips[1]);
    let (cluster, mut node) = start(ADDRESS.into(), &[cni::SUBNET, SUBNET_V6], &[flag])?;
    is_known_everywhere(&cluster, &node, &ips)?;
    let before = audited(&cluster, "web")?;
    let patched = patches(&cluster.audit()?, "web").len();
    node.agent.kill()?;
    node.agent.start()?;
    // Once another one is told, all that the agent has to say of the first has been said.
    let later = json!({ "nodeName": NODE_NAME, "containers": [shell("main", FOR_EVER, json!({}))] });
    cluster.create(PODS, &serde_json::from_str(&pod("later", later))?)?;
    cluster.wait_for(&format!("{PODS}/later"), "ready", is_ready)?;
    audited(&cluster, "later")?;
    let after = cluster.get_json(&format!("{PODS}/web"))?;
    same("what is told after a kill", &after["status"], &before["status"])?;
    same("patches after a kill", patches(&cluster.audit()?, "web").len(), patched)?;
    cluster.request("DELETE", &format!("{PODS}/later"), "application/json", &json!({}))?;
    cluster.wait_gone(&format!("{PODS}/later"))?;
    end(cluster, node)
}

fn v6_alone() -> Result<()> {
    add_v6()?;
    ip(&["-4", "address", "flush", "dev", "uplink"])?;
    let (cluster, node) = start(ADDRESS_V6.into(), &[SUBNET_V6], &[])?;
    is_known_everywhere(&cluster, &node, &[ADDRESS_V6.into()])?;
    let web = node.ready("web")?;
    let server = inside(&web, "echo $KUBERNETES_SERVICE_HOST")?;
    same("the API server's service", server.as_str(), "fd00:10:96::1")?;
    end(cluster, node)
}
