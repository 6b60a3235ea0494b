//! Network namespaces, attachments, leases, cached results, rules and links of others.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings};
use berth_integration::containerd::SOCKET;
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, system};
use berth_integration::vm::Feature;
use berth_integration::{binaries, cni, components, links};
use serde_json::{Value, json};

use super::second::{self, Second};
use crate::kit::{IMAGE, eventually, page, pod, shell};
use crate::plugins::{calls, with_recorder};
use crate::suite::{Test, same, test};

/// Where libcni keeps results.
const CACHE: &str = "/var/lib/cni";
/// A namespace whose name is like ours.
const NAMESAKE: &str = "/run/netns/berth-00000000000000000000";
/// Where a container of ctr is attached, and what that runtime calls it.
const LOOSE: &str = "default-loose";

pub(crate) fn tests() -> Vec<Test> {
    vec![test("neighbours::networks_of_others_live_on", live_on).needs(Feature::Nat)]
}

/// Everybody else on the node.
struct Others {
    second: Second,
    addresses: Vec<IpAddr>,
    before: BTreeSet<String>,
    leases: PathBuf,
}

fn live_on() -> Result<()> {
    let world = World::here()?;
    let plugins = with_recorder(&world)?;
    let broken = world.root().join("broken");
    add_flaky(&plugins, &broken)?;
    let mut node = Node::prepare(&Settings {
        berth: json!({ "cni": { "binDirs": [plugins], "gcPeriod": "1s" } }),
        ..Settings::with_registry()
    })?;
    let leases = world.root().join("leases");
    let mut network = cni::network(&leases);
    network["cniVersion"] = "1.1.0".into();
    network["plugins"].as_array_mut().context("plugins")?.push(json!({ "type": "recorder" }));
    cni::write(node.cni_conf(), &network)?;
    let others = Others::settle(&node, &plugins, leases)?;

    // What an earlier life of this agent left, without a record of its pod, goes; one only later.
    fs::write(&broken, "")?;
    let [at_once, later] = [("1", "recorder"), ("2", "flaky")]
        .map(|(digit, last)| Leftover::plant(&node, &plugins, &others.leases, digit, last));
    node.agent.start()?;
    at_once?.gone(&others)?;
    let later = later?;
    ensure!(later.netns.exists(), "a namespace went before its attachment could");
    others.live("start")?;
    node.apply("ours", &serves("ours"))?;
    let ours = node.ready("ours")?.ip()?;
    others.live("a pod of ours")?;
    fs::remove_file(&broken)?;
    later.gone(&others)?;
    others.live("collection")?;

    node.agent.kill()?;
    let third = Leftover::plant(&node, &plugins, &others.leases, "3", "recorder")?;
    node.agent.start()?;
    third.gone(&others)?;
    others.live("SIGKILL and another start")?;
    let others = others.do_the_same(ours)?;

    node.remove("ours")?;
    node.gone("ours")?;
    others.live("the end of our pod")?;
    same("what is there without us", seen(&others.leases)?, others.before.clone())?;
    node.agent.stop()?;
    others.live("the end of our agent")?;
    let asked: Vec<Value> = calls(&world)?.into_iter().filter(|call| call["verb"] == "GC").collect();
    same("plugins that were told to collect", asked, Vec::new())?;

    others.leave(&world, &plugins)?;
    node.agent.start()?;
    node.end()
}

impl Others {
    fn settle(node: &Node, plugins: &Path, leases: PathBuf) -> Result<Self> {
        let second = Second::start(node, plugins)?;
        second.apply(&serves("theirs"))?;
        let theirs = second.ready()?.ip()?;
        let ctr = |args: &[&str]| ctr_with_network(node, plugins, args);
        ctr(&["images", "pull", "--plain-http", IMAGE])?;
        let group = format!("{}/loose", node.world.cgroup());
        let serve = ["/bin/sh", "-c", "mkdir /www; echo here > /www/index.html; httpd -f -p 80 -h /www"];
        let run = ["run", "--detach", "--cni", "--cgroup", &group, IMAGE, "loose"];
        ctr(&[&run[..], &serve[..]].concat())?;
        let loose = address_in(&loose_result())?;
        make_namespace(Path::new(NAMESAKE))?;
        // Gone from where we look; its runtime, with mounts of its own, still has it.
        let (dead, kept) = (Path::new("/run/netns/dead"), kept(&node.world));
        make_namespace(dead)?;
        berth_cni(
            node.cni_conf(),
            plugins,
            Path::new(CACHE),
            &["add", "--id", "dead", "--netns", "/run/netns/dead"],
        )?;
        fs::write(&kept, "")?;
        system("mount", &["--bind", "/run/netns/dead", &kept])?;
        system("umount", &["/run/netns/dead"])?;
        fs::remove_file(dead)?;
        let before = seen(&leases)?;
        Ok(Self { second, addresses: vec![theirs, loose], before, leases })
    }

    /// Everything that was there is, and answers.
    fn live(&self, after: &str) -> Result<()> {
        let seen = seen(&self.leases)?;
        let lost: Vec<_> = self.before.difference(&seen).collect();
        ensure!(lost.is_empty(), "after {after} this is gone: {lost:#?}");
        for address in &self.addresses {
            let said = page(SocketAddr::new(*address, 80), "/").with_context(|| format!("after {after}"))?;
            same(after, said.text().as_str(), "here\n")?;
        }
        Ok(())
    }

    /// The second Berth is killed, starts and collects, and what is ours lives on.
    fn do_the_same(mut self, ours: IpAddr) -> Result<Self> {
        let (mine, before) = (seen(&self.leases)?, self.before.clone());
        self.addresses.push(ours);
        self.before = mine;
        self.second.kill_agent()?;
        self.second.start_agent()?;
        self.second.ready()?;
        self.live("SIGKILL and another start of the second Berth")?;
        self.addresses.pop();
        self.before = before;
        Ok(self)
    }

    fn leave(self, world: &World, plugins: &Path) -> Result<()> {
        self.second.end()?;
        let conf = world.root().join("cni");
        let detach = |id: &str, netns: &str| {
            berth_cni(&conf, plugins, Path::new(CACHE), &["del", "--id", id, "--netns", netns])
        };
        let record: Value = serde_json::from_slice(&fs::read(loose_result())?)?;
        detach(LOOSE, record["netns"].as_str().context("no namespace")?)?;
        let ctr = "ctr tasks kill --signal KILL loose; ctr tasks rm --force loose; ctr containers rm loose";
        own_ctr(world, plugins, ctr)?;
        let kept = kept(world);
        detach("dead", &kept)?;
        system("umount", &[&kept])?;
        system("umount", &[NAMESAKE])?;
        Ok(fs::remove_file(NAMESAKE)?)
    }
}

/// Where the namespace is kept that is gone from its place.
fn kept(world: &World) -> String {
    world.root().join("kept").display().to_string()
}

fn loose_result() -> PathBuf {
    Path::new(CACHE).join(format!("results/{}-{LOOSE}-eth0", cni::NETWORK))
}

/// What a life of this agent left that ended without its records: namespace, mark, attachment and lease.
struct Leftover {
    id: String,
    netns: PathBuf,
}

impl Leftover {
    fn plant(node: &Node, plugins: &Path, leases: &Path, digit: &str, last: &str) -> Result<Self> {
        let id = digit.repeat(64);
        let netns = PathBuf::from(format!("/run/netns/berth-{}", digit.repeat(20)));
        make_namespace(&netns)?;
        let marks = Path::new(STATE_DIR).join("netns");
        fs::create_dir_all(&marks)?;
        fs::write(marks.join(&id), "")?;
        let conf = node.world.root().join(format!("conf-{digit}"));
        let mut network = cni::network(leases);
        network["plugins"].as_array_mut().context("plugins")?.push(json!({ "type": last }));
        cni::write(&conf, &network)?;
        let cache = node.world.root().join(format!("cache-{digit}"));
        let at = netns.display().to_string();
        berth_cni(&conf, plugins, &cache, &["add", "--id", &id, "--netns", &at])?;
        let own = Path::new(ROOT_DIR).join("berth/attachments");
        fs::create_dir_all(&own)?;
        let name = format!("{}@{id}@eth0", cni::NETWORK);
        fs::write(own.join(&name), fs::read(cache.join("attachments").join(&name))?)?;
        Ok(Self { id, netns })
    }

    fn gone(&self, others: &Others) -> Result<()> {
        eventually(&format!("what was left of {} to be gone", &self.id[..1]), &Vec::new(), || {
            let mine = |line: &String| line.contains(&self.id) || line.contains(&self.id[..20]);
            let mut left: Vec<_> = seen(&others.leases)?.into_iter().filter(mine).collect();
            for dir in [Path::new(STATE_DIR).join("netns"), Path::new(ROOT_DIR).join("berth/attachments")] {
                left.extend(contents(&dir)?.into_iter().filter(mine));
            }
            Ok(left)
        })
    }
}

/// A pod that answers.
fn serves(name: &str) -> String {
    let script = "mkdir /www; echo here > /www/index.html; exec httpd -f -p 80 -h /www";
    pod(name, json!({ "containers": [shell("main", script, json!({}))] }))
}

/// Everything that runtimes share, a line for each.
fn seen(leases: &Path) -> Result<BTreeSet<String>> {
    let mut seen: BTreeSet<String> = links::names()?.into_iter().map(|name| format!("link {name}")).collect();
    for path in files::list("/run/netns")? {
        // It may go between the two looks.
        let found =
            files::there(fs::metadata(&path)).with_context(|| format!("look at {}", path.display()))?;
        seen.extend(found.map(|found| format!("netns {} {}", path.display(), found.ino())));
    }
    for rule in system("iptables-save", &[])?.lines().filter(|line| !line.starts_with('#')) {
        seen.insert(format!("rule {}", rule.split(" [").next().unwrap_or(rule)));
    }
    let dirs = ["results", "attachments"].map(|name| Path::new(CACHE).join(name)).into_iter();
    for dir in dirs.chain([leases.join(cni::NETWORK), Path::new(second::ROOT_DIR).join("berth/attachments")])
    {
        seen.extend(contents(&dir)?);
    }
    Ok(seen)
}

/// Files with their content, but for host-local's own.
fn contents(dir: &Path) -> Result<Vec<String>> {
    let mut contents = Vec::new();
    for path in files::list_if_there(dir)? {
        let name = path.display().to_string();
        if !name.ends_with("/lock") && !name.contains("/last_reserved_ip.") {
            // It may go between the two looks.
            let content = fs::read(&path).unwrap_or_default();
            contents.push(format!("file {name}: {}", String::from_utf8_lossy(&content)));
        }
    }
    Ok(contents)
}

fn make_namespace(path: &Path) -> Result<()> {
    fs::write(path, "")?;
    system("unshare", &[&format!("--net={}", path.display()), "true"]).map(drop)
}

/// The address in a cached result.
fn address_in(result: &Path) -> Result<IpAddr> {
    let text = fs::read(result).with_context(|| format!("read {}", result.display()))?;
    let record: Value = serde_json::from_slice(&text)?;
    let address = record["result"]["ips"][0]["address"].as_str().context("no address")?;
    Ok(address.split('/').next().unwrap_or(address).parse()?)
}

/// The plugin `flaky`, whose DEL fails while a file is there.
fn add_flaky(plugins: &Path, broken: &Path) -> Result<()> {
    let script = format!(
        "#!/bin/sh
if [ $CNI_COMMAND = DEL ] && [ -e {} ]; then
    echo '{{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"no cable\"}}'
    exit 1
fi
exec {}
",
        broken.display(),
        components::binary("tuning")?.display()
    );
    files::write_program(plugins.join("flaky"), &script)
}

fn berth_cni(conf: &Path, plugins: &Path, cache: &Path, args: &[&str]) -> Result<()> {
    let done = Command::new(binaries::path("berth-cni")?)
        .arg("--conf-dir")
        .arg(conf)
        .arg("--bin-dir")
        .arg(plugins)
        .arg("--cache-dir")
        .arg(cache)
        .args(args)
        .output()?;
    ensure!(done.status.success(), "berth-cni {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn ctr_with_network(node: &Node, plugins: &Path, args: &[&str]) -> Result<()> {
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    own_ctr(&node.world, plugins, &format!("ctr {}", quoted.join(" ")))
}

/// Runs a script in which `ctr` finds configuration and plugins where it looks for them, which only it sees there.
fn own_ctr(world: &World, plugins: &Path, script: &str) -> Result<()> {
    let root = world.root().display();
    let before = format!(
        "set -e
mkdir -p {root}/etc/upper {root}/etc/work
mount -t overlay -o lowerdir=/etc,upperdir={root}/etc/upper,workdir={root}/etc/work overlay /etc
mkdir -p /etc/cni/net.d
cp {root}/cni/*.conflist /etc/cni/net.d/
mount -t tmpfs none /opt
mkdir /opt/cni
ln -s {} /opt/cni/bin
ctr() {{ {} --address {SOCKET} --namespace default \"$@\"; }}
",
        plugins.display(),
        components::binary("ctr")?.display(),
    );
    system("unshare", &["--mount", "sh", "-c", &format!("{before}{script}")]).map(drop)
}
