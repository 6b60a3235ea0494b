//! What CNI plugins are told by the agent, and what it makes of their answers.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::{cni, components};
use serde_json::{Value, json};

use crate::kit::{eventually, page, pod, shell, sleeper, with};
use crate::suite::{Test, same, test};

/// The real plugins that networks of tests are made of.
const PLUGINS: [&str; 4] = ["bridge", "host-local", "portmap", "tuning"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("plugins::capabilities_reach_them", capabilities),
        test("plugins::dual_stack", dual_stack),
        test("plugins::gc_names_everything_that_is_attached", gc),
    ]
}

/// A directory of plugins, with one named `recorder` that writes down how it is called.
pub(crate) fn with_recorder(world: &World) -> Result<PathBuf> {
    let dir = world.root().join("plugins");
    fs::create_dir(&dir)?;
    for plugin in PLUGINS {
        symlink(components::binary(plugin)?, dir.join(plugin))?;
    }
    let script = format!(
        "#!/bin/sh
in=$(cat)
echo \"{{\\\"verb\\\":\\\"$CNI_COMMAND\\\",\\\"id\\\":\\\"$CNI_CONTAINERID\\\",\\\"stdin\\\":$in}}\" >> {}
case $CNI_COMMAND in GC | STATUS) exit 0 ;; esac
printf %s \"$in\" | {}
",
        log(world).display(),
        components::binary("tuning")?.display(),
    );
    files::write_program(dir.join("recorder"), &script)?;
    Ok(dir)
}

/// A node, not started, that has a plugin of this name beside those of all; `change` puts it into the network.
pub(crate) fn with_plugin(
    world: &World,
    name: &str,
    script: &str,
    change: impl FnOnce(&mut Vec<Value>),
) -> Result<Node> {
    let dir = world.root().join("plugins");
    files::make_dir(&dir)?;
    files::write_program(dir.join(name), script)?;
    let berth = json!({ "cni": { "binDirs": [dir, components::bin_dir()] } });
    let node = Node::prepare(&Settings { berth, ..Settings::default() })?;
    let mut network = cni::network(&world.root().join("leases"));
    change(network["plugins"].as_array_mut().context("plugins")?);
    cni::write(node.cni_conf(), &network)?;
    Ok(node)
}

/// Every call of the recorder so far, in order. One that is being written down is not there yet.
pub(crate) fn calls(world: &World) -> Result<Vec<Value>> {
    let text = fs::read_to_string(log(world)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

fn log(world: &World) -> PathBuf {
    world.root().join("calls")
}

/// A node whose network is a bridge and the recorder; `bridge` is merged into the first of them.
fn node(world: &World, berth: Value, bridge: Value) -> Result<Node> {
    let plugins = with_recorder(world)?;
    let cni = with(json!({ "binDirs": [plugins], "gcPeriod": "1s" }), berth);
    let mut node = Node::prepare(&Settings { berth: json!({ "cni": cni }), ..Settings::default() })?;
    let mut network = cni::network(&world.root().join("leases"));
    network["cniVersion"] = "1.1.0".into();
    let first = with(with(network["plugins"][0].clone(), json!({ "ipMasq": false })), bridge);
    let all = json!({ "portMappings": true, "bandwidth": true, "dns": true });
    network["plugins"] = json!([first, { "type": "recorder", "capabilities": all }]);
    cni::write(node.cni_conf(), &network)?;
    node.agent.start()?;
    Ok(node)
}

fn capabilities() -> Result<()> {
    let world = World::here()?;
    let node = node(&world, json!({}), json!({}))?;
    let port = |number: u16, protocol: &str| json!({ "containerPort": number, "hostPort": number + 8000, "protocol": protocol });
    let ports = json!({ "ports": [port(80, "TCP"), port(53, "UDP"), port(99, "SCTP")] });
    let mut manifest: Value = serde_json::from_str(&pod(
        "told",
        json!({
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": ["192.0.2.53"],
                "searches": ["example.test"],
                "options": [{ "name": "ndots", "value": "2" }],
            },
            "containers": [shell("main", "exec sleep infinity", ports)],
        }),
    ))?;
    manifest["metadata"]["annotations"] = json!({
        "kubernetes.io/ingress-bandwidth": "10M",
        "kubernetes.io/egress-bandwidth": "2M",
    });
    node.apply("told", &manifest.to_string())?;
    node.ready("told")?;
    node.remove("told")?;
    node.gone("told")?;
    let mapping = |number: u16, protocol: &str| json!({ "hostPort": number + 8000, "containerPort": number, "protocol": protocol });
    let wanted = json!({
        "portMappings": [mapping(80, "tcp"), mapping(53, "udp"), mapping(99, "sctp")],
        "bandwidth": {
            "ingressRate": 10_000_000, "ingressBurst": u32::MAX,
            "egressRate": 2_000_000, "egressBurst": u32::MAX,
        },
        "dns": { "servers": ["192.0.2.53"], "searches": ["example.test"], "options": ["ndots:2"] },
    });
    for verb in ["ADD", "DEL"] {
        let calls = calls(&world)?;
        let call = calls.iter().find(|call| call["verb"] == verb);
        let told = &call.with_context(|| format!("no {verb} in {calls:?}"))?["stdin"]["runtimeConfig"];
        same(verb, told, &wanted)?;
    }
    node.end()
}

fn dual_stack() -> Result<()> {
    let world = World::here()?;
    let ipam = json!({ "ipam": {
        "type": "host-local",
        "dataDir": world.root().join("leases"),
        "ranges": [[{ "subnet": cni::SUBNET }], [{ "subnet": "fd88::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    } });
    let node = node(&world, json!({}), ipam)?;
    let script = "mkdir /www; echo here > /www/index.html; exec httpd -f -p 80 -h /www";
    node.apply("both", &pod("both", json!({ "containers": [shell("main", script, json!({}))] })))?;
    let both = node.ready("both")?;
    let listed = both.0["status"]["podIPs"].as_array().context("no addresses")?;
    let addresses: Vec<IpAddr> = listed
        .iter()
        .map(|one| Ok(one["ip"].as_str().context("no address")?.parse()?))
        .collect::<Result<_>>()?;
    let [first, second] = addresses.as_slice() else { anyhow::bail!("addresses are {addresses:?}") };
    ensure!(first.is_ipv4() && second.is_ipv6() && both.ip()? == *first, "addresses are {addresses:?}");
    for address in &addresses {
        same("page", page(SocketAddr::new(*address, 80), "/")?.text().as_str(), "here\n")?;
    }
    node.end()
}

/// Where the administrator says that all attachments are in one cache: what another wrote there is kept, and with a file
/// that nobody can read nobody is told.
fn gc() -> Result<()> {
    const RESULTS: &str = "/var/lib/cni/results";
    let world = World::here()?;
    let node = node(&world, json!({ "pluginGC": true }), json!({}))?;
    node.apply("ours", &sleeper("ours"))?;
    node.ready("ours")?;
    let theirs = json!({
        "kind": "cniCacheV1", "containerId": "theirs", "ifName": "eth0", "networkName": cni::NETWORK,
    });
    fs::write(format!("{RESULTS}/lab-theirs-eth0"), theirs.to_string())?;
    let collections = || -> Result<Vec<Value>> {
        Ok(calls(&world)?.into_iter().filter(|call| call["verb"] == "GC").collect())
    };
    let ours = calls(&world)?.iter().find(|call| call["verb"] == "ADD").context("no ADD")?["id"].clone();
    let valid = json!([
        { "containerID": ours, "ifname": "eth0" },
        { "containerID": "theirs", "ifname": "eth0" },
    ]);
    eventually("both to be valid", &Some(valid), || {
        Ok(collections()?.pop().map(|call| call["stdin"]["cni.dev/valid-attachments"].clone()))
    })?;
    let refusals = || -> Result<usize> {
        Ok(fs::read_to_string(node.agent.log())?.matches("no CNI plugin was told to collect").count())
    };
    let torn = format!("{RESULTS}/lab-torn-eth0");
    fs::write(&torn, "")?;
    eventually("a refusal", &true, || Ok(refusals()? > 0))?;
    let (told, refused) = (collections()?.len(), refusals()?);
    eventually("another refusal", &true, || Ok(refusals()? > refused))?;
    same("plugins that were told", collections()?.len(), told)?;
    for file in [torn, format!("{RESULTS}/lab-theirs-eth0")] {
        fs::remove_file(file)?;
    }
    node.end()
}
