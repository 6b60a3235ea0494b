//! Plugins that do not answer STATUS.

use berth_core::{derived::network::upkeep::UNHEARD_AFTER, event::Event};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::*;
use crate::written::write_program;

/// Far longer than it takes to see a change.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Puts a plugin into a directory of a root. It writes down that it was asked, and then does this.
fn install(dir: &Path, bin: &str, plugin: &str, then: &str) {
    let bin = dir.join(bin);
    fs::create_dir_all(&bin).unwrap();
    let script = format!("#!/bin/sh\ncat > /dev/null\necho {plugin} >> {}/asked\n{then}\n", dir.display());
    write_program(&bin.join(plugin), &script);
}

/// Makes this plugin the network.
fn configure(dir: &Path, plugin: &str) {
    let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{{"type":"{plugin}"}}]}}"#);
    fs::write(dir.join("new"), conf).unwrap();
    fs::rename(dir.join("new"), dir.join("net.d/10.conflist")).unwrap();
}

/// Who was asked.
fn questions(dir: &Path) -> Vec<String> {
    let asked = fs::read_to_string(dir.join("asked")).unwrap_or_default();
    asked.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn what_changes_while_a_plugin_does_not_answer_is_seen() {
    type Change = fn(&Path, &watch::Sender<CurrentRuntime>);
    let changes: [(&str, Change); 3] = [
        ("another plugin", |dir, _| configure(dir, "answers")),
        ("another directory of plugins", |dir, runtime| {
            runtime.send_replace(saying(dir, "net.d", "moved"));
        }),
        ("no configuration", |dir, _| fs::remove_file(dir.join("net.d/10.conflist")).unwrap()),
    ];
    for (what, change) in changes {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        install(dir, "bin", "hangs", "exec sleep 1000");
        install(dir, "bin", "answers", "exit 0");
        install(dir, "moved", "hangs", "exit 0");
        fs::create_dir(dir.join("net.d")).unwrap();
        configure(dir, "hangs");
        let (runtime, current) = watch::channel(saying(dir, "net.d", "bin"));
        let network = network_by(dir, current, Arc::new(Mutex::new(Ok(()))));
        let mut readiness = network.readiness();
        let (events, _told) = mpsc::channel(16);
        let (cidrs, given) = watch::channel(Vec::new());
        let keeping = tokio::spawn(network.keep(events, given));
        let asked = async {
            while questions(dir).is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, asked).await.expect("it is asked");

        // What makes no other question is no reason to ask again.
        fs::write(dir.join("net.d/README"), "").unwrap();
        cidrs.send_replace(vec!["10.1.2.0/24".to_owned()]);
        sleep(SEEN_WITHIN).await;
        assert_eq!((questions(dir), readiness.borrow().clone()), (vec!["hangs".to_owned()], None), "{what}");

        change(dir, &runtime);
        let ready = timeout(LONG, readiness.wait_for(Option::is_some)).await.expect(what).unwrap().clone();
        let expected =
            if what == "no configuration" { Err("cni plugin not initialized".to_owned()) } else { Ok(()) };
        assert_eq!(ready, Some(expected), "{what}");
        keeping.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_a_while_for_the_first_answer_alone() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(dir.path(), Ok(()));
    let answers: [Readiness; 3] = [None, Some(Ok(())), Some(Err("no".to_owned()))];
    for answer in answers {
        network.0.readiness.send_replace(answer.clone());
        let (events, mut told) = mpsc::channel(1);
        let event = tokio::select! {
            () = network.tell_unheard(&events) => panic!("it goes on until the agent stops"),
            event = timeout(2 * UNHEARD_AFTER, told.recv()) => event.ok().flatten(),
        };
        assert_eq!(event, answer.is_none().then_some(Event::NetworkUnheard), "{answer:?}");
    }
}
