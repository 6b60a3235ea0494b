use std::{collections::BTreeMap, process::Command, sync::Mutex};

use berth_cni::{PodIdentity, SpecVersion};
use berth_core::event::Event;
use futures::FutureExt as _;
use tokio::sync::mpsc;

use super::*;
use crate::config::RuntimeSettings;

mod unanswered;

/// A configuration whose plugins are asked nothing beside ADD and DEL.
const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"none"}]}"#;
/// As long as any of these tests may take.
const LONG: Duration = Duration::from_secs(60);

/// What holds while containerd's configuration names these directories below another.
fn saying(dir: &Path, conf_dir: &str, bin_dir: &str) -> CurrentRuntime {
    let settings = RuntimeSettings {
        handlers: BTreeMap::new(),
        snapshotter: String::new(),
        registry_dirs: Vec::new(),
        cni_conf_dir: dir.join(conf_dir),
        cni_conf_template: None,
        cni_bin_dirs: vec![dir.join(bin_dir)],
    };
    CurrentRuntime { settings: Arc::new(settings), fault: None }
}

/// A network without plugins in a directory, whose records can be written or not.
fn network(dir: &Path, records: Result<(), String>) -> Network {
    let (_, current) = watch::channel(saying(dir, "net.d", "bin"));
    network_by(dir, current, Arc::new(Mutex::new(records)))
}

/// The same by a configuration of containerd's, and whether records can be written may change.
fn network_by(
    dir: &Path,
    current: watch::Receiver<CurrentRuntime>,
    records: Arc<Mutex<Result<(), String>>>,
) -> Network {
    let at = |name: &str| dir.join(name).display().to_string();
    let places = Paths {
        root: at("root"),
        pod_logs: at("logs"),
        container_logs: at("links"),
        run: at("run"),
        seccomp: at("seccomp"),
    };
    let cni = Cni { cache_dir: dir.join("cache"), gc_period: Duration::MAX, plugin_gc: false };
    let answers =
        Changeable(Box::new(move |_, _, _| std::future::ready(records.lock().unwrap().clone()).boxed()));
    Network::open(&cni, current, &places, answers).unwrap()
}

fn attachment(sandbox: &str) -> Attachment {
    let identity = PodIdentity { namespace: "shop", name: "web", uid: "0b1c" };
    Attachment::for_pod(identity, sandbox, "/run/netns/x", 0).unwrap()
}

/// What comes of everything that is asked for a sandbox.
async fn asked(network: &Network, sandbox: &SandboxId, deadline: Instant) -> [Result<(), NetworkError>; 3] {
    let list = NetworkList::parse(LIST.as_bytes()).unwrap();
    let attachment = attachment(sandbox.as_str());
    [
        network.del(sandbox, deadline).await,
        network.del_by_record(sandbox, deadline).await,
        network.add(&list, attachment, deadline).await.map(drop),
    ]
}

/// Nobody would remove what such a plugin makes after a DEL.
#[tokio::test]
async fn nothing_is_asked_for_a_sandbox_while_a_plugin_of_an_earlier_agent_runs_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(dir.path(), Ok(()));
    let sandbox = SandboxId::from_known(format!("berth-test-{}", std::process::id()));
    // There is no plugin, so a record of what was begun is left.
    asked(&network, &sandbox, Instant::now() + PLUGINS_WITHIN).await[2].as_ref().unwrap_err();
    let mut plugin = Command::new("sleep");
    plugin.arg("1000").env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", sandbox.as_str());
    let mut plugin = plugin.spawn().unwrap();
    network.find_leftovers(BTreeSet::new(), &[sandbox.clone()].into()).await;
    let asked = asked(&network, &sandbox, Instant::now()).await;
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    for result in asked {
        assert!(matches!(result, Err(NetworkError::Orphan { .. })), "{result:?}");
    }
}

#[tokio::test]
async fn no_thread_touches_records_on_a_disk_that_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(dir.path(), Err("no answer".to_owned()));
    for result in asked(&network, &SandboxId::from_known("x"), Instant::now() + PLUGINS_WITHIN).await {
        assert!(matches!(result, Err(NetworkError::Records(_))), "{result:?}");
    }
}

/// What was attached is detached by the plugin that attached it, which may be where plugins were then.
#[test]
fn plugins_and_configurations_are_where_they_were_said_to_be_last() {
    let dir = Path::new("/cni");
    let (said, current) = watch::channel(saying(dir, "a.d", "a"));
    let plugins = Plugins::new(current);
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    for (conf, bin, attaching, detaching) in [
        ("a.d", "a", &["a"][..], &["a"][..]),
        ("b.d", "b", &["b"], &["b", "a"]),
        ("c.d", "c", &["c"], &["c", "a", "b"]),
        ("a.d", "a", &["a"], &["a", "b", "c"]),
    ] {
        said.send_replace(saying(dir, conf, bin));
        let below = |names: &[&str]| names.iter().map(|name| dir.join(name)).collect::<Vec<_>>();
        assert_eq!(plugins.conf_dir(), dir.join(conf));
        assert_eq!(plugins.attaching(&runtime).bin_dirs(), below(attaching), "{bin}");
        assert_eq!(plugins.detaching(&runtime).bin_dirs(), below(detaching), "{bin}");
    }
}

async fn is_ready(told: &mut mpsc::Receiver<Event>) -> bool {
    match tokio::time::timeout(LONG, told.recv()).await {
        Ok(Some(Event::NetworkReady(ready))) => ready.is_ok(),
        other => panic!("{other:?}"),
    }
}

/// The clock stands still while anything works: what is seen only when it is time to look again is not seen at once.
#[tokio::test(start_paused = true)]
async fn configurations_that_have_moved_are_watched_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (said, current) = watch::channel(saying(dir.path(), "a.d", "bin"));
    let network = network_by(dir.path(), current, Arc::new(Mutex::new(Ok(()))));
    let (events, mut told) = mpsc::channel(8);
    let (_ranges, cidrs) = watch::channel(Vec::new());
    let changes = async {
        assert!(!is_ready(&mut told).await, "there is no configuration");
        for place in ["a.d", "b.d"] {
            if place != "a.d" {
                said.send_replace(saying(dir.path(), place, "bin"));
                assert!(!is_ready(&mut told).await, "there is none in {place}");
            }
            let began = Instant::now();
            fs::create_dir(dir.path().join(place)).unwrap();
            fs::write(dir.path().join(place).join("10.conflist"), LIST).unwrap();
            assert!(is_ready(&mut told).await, "there is one in {place}");
            let took = began.elapsed();
            assert!(took <= Duration::from_secs(1), "{place}: it was seen after {took:?}");
        }
    };
    tokio::select! {
        () = network.keep(events, cidrs) => panic!("it is kept as long as the agent runs"),
        () = changes => {}
    }
}

/// Before its namespace goes, a sandbox is looked for on disk only where a DEL may have left something.
#[tokio::test]
async fn what_was_detached_is_not_looked_for_once_more() {
    let dir = tempfile::tempdir().unwrap();
    let answers = Arc::new(Mutex::new(Ok(())));
    let (_, current) = watch::channel(saying(dir.path(), "net.d", "bin"));
    let network = network_by(dir.path(), current, Arc::clone(&answers));
    let [detached, failed, unknown] = ["detached", "failed", "unknown"].map(SandboxId::from_known);
    let list = NetworkList::parse(LIST.as_bytes()).unwrap();
    // There is no such plugin.
    network.add(&list, attachment("failed"), Instant::now() + PLUGINS_WITHIN).await.unwrap_err();
    network.detach(&detached).await.unwrap();

    *answers.lock().unwrap() = Err("no answer".to_owned());
    let look = async |sandbox: &SandboxId| network.ensure_detached(sandbox).await.is_err();
    assert_eq!([look(&detached).await, look(&failed).await, look(&unknown).await], [false, true, true]);
    network.detach(&unknown).await.unwrap_err();
    assert!(look(&unknown).await, "its DEL has not worked");
    network.forget(&detached);
    assert!(look(&detached).await, "another life of it");
}

#[test]
fn a_pod_that_no_plugin_gives_an_address_is_not_wired() {
    let attachment = attachment("4f0a");
    let interfaces = r#""interfaces":[{"name":"eth0","sandbox":"/run/netns/x"},{"name":"net1"}]"#;
    for (ips, expected) in [
        (r#"[{"address":"10.0.0.2/24","interface":0}]"#, Some("10.0.0.2")),
        (r#"[{"address":"10.0.0.2/24"}]"#, Some("10.0.0.2")),
        (r#"[{"address":"10.0.0.2/24","interface":1}]"#, None),
        ("[]", None),
    ] {
        let text = format!(r#"{{"cniVersion":"1.1.0",{interfaces},"ips":{ips}}}"#);
        let result = AddResult::parse(text.as_bytes(), SpecVersion::V1_1_0).unwrap();
        let found = status(&attachment, &result).map(|found| found.ips[0].to_string());
        let none = "failed to find network info for sandbox \"4f0a\"".to_owned();
        assert_eq!(
            found.map_err(|error| error.to_string()),
            expected.map(str::to_owned).ok_or(none),
            "{ips}"
        );
    }
}

#[test]
fn a_root_directory_is_one_agents() {
    let dir = tempfile::tempdir().unwrap();
    let places = dir.path().join("root/berth");
    let held = claim(&places).unwrap();
    let refused = claim(&places).unwrap_err();
    assert!(matches!(&refused, OpenError::Taken(_)), "{refused}");
    assert!(refused.to_string().contains("--root-dir"), "{refused}");
    drop(held);
    claim(&places).unwrap();
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions()) & 0o777
    };
    assert_eq!([&*places, places.parent().unwrap()].map(mode), [0o700, 0o750]);
}
