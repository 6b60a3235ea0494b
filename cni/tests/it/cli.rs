//! The command line, from add to del.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Fixture, result_with_ip, wait_until};

fn command(fixture: &Fixture, args: &[&str]) -> Command {
    let dirs = [
        ("--conf-dir", fixture.root.path().join("conf")),
        ("--bin-dir", fixture.bin()),
        ("--cache-dir", fixture.cache()),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth-cni"));
    for (option, dir) in dirs {
        command.arg(option).arg(dir);
    }
    command.args(args);
    command
}

fn berth_cni(fixture: &Fixture, args: &[&str]) -> Output {
    command(fixture, args).output().unwrap()
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn from_add_to_del() {
    let fixture = Fixture::new(&["a"]);
    fixture.control("a", &result_with_ip("10.0.0.2/24"));
    let conf = fixture.root.path().join("conf");
    fs::create_dir(&conf).unwrap();
    fs::write(conf.join("10.conflist"), r#"{"name":"net","cniVersion":"1.1.0","plugins":[{"type":"a"}]}"#)
        .unwrap();
    let target = ["--id", "id1", "--netns", "/proc/self/ns/net"];
    let run = |verb: &[&str]| json_of(&berth_cni(&fixture, &[verb, &["--output", "json"]].concat()));
    assert_eq!(run(&["list"]), json!([{"name": "net", "cniVersion": "1.1.0", "plugins": ["a"]}]));
    assert_eq!(run(&["status"]), json!({"network": "net", "ready": true}));
    assert_eq!(run(&["version"])["a"][6], "1.1.0");
    let added = run(&[&["add"], &target[..], &["--arg", "K=V"]].concat());
    assert_eq!(added, json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}));
    run(&[&["check"], &target[..]].concat());
    fs::remove_dir_all(&conf).unwrap();
    assert_eq!(run(&["del", "--id", "id1"]), json!({"deleted": "id1"}));
    let calls = fixture.calls();
    assert_eq!(calls.last().unwrap()["env"]["CNI_ARGS"], "K=V");
    assert_eq!(fixture.take_calls(), ["STATUS a", "VERSION a", "ADD a", "CHECK a", "DEL a"]);
}

/// What others attached to the network is not the command's.
#[test]
fn gc_removes_what_the_command_attached() {
    let fixture = Fixture::new(&["a"]);
    let conf = fixture.root.path().join("conf");
    fs::create_dir(&conf).unwrap();
    fs::write(conf.join("10.conflist"), r#"{"name":"net","cniVersion":"1.1.0","plugins":[{"type":"a"}]}"#)
        .unwrap();
    let run = |args: &[&str]| json_of(&berth_cni(&fixture, &[args, &["--output", "json"]].concat()));
    for id in ["one", "two", "foreign"] {
        run(&["add", "--id", id, "--netns", "/proc/self/ns/net"]);
    }
    fs::remove_file(fixture.cache().join("attachments/net@foreign@eth0")).unwrap();
    fixture.take_calls();
    let report = run(&["gc", "--keep", "two"]);
    assert_eq!(report, json!({"removed": ["net/one/eth0"], "failures": []}));
    assert_eq!(fixture.take_calls(), ["DEL a"]);
    run(&["gc", "--keep", "two", "--ask-plugins"]);
    let valid = &fixture.calls()[0]["stdin"]["cni.dev/valid-attachments"];
    assert_eq!(valid.as_array().unwrap().len(), 2, "{valid}");
    assert_eq!(fixture.take_calls(), ["GC a"]);
}

/// More than a pipe of the usual size holds, which nobody empties any more.
#[tokio::test]
async fn a_plugin_of_a_command_that_was_killed_goes_on_whatever_it_prints() {
    let fixture = Fixture::new(&["a"]);
    let gate = fixture.bin().join("gate");
    fixture.control("a", &json!({"ADD": {"wait_for": gate, "stderr_flood": 200_000, "flood": 200_000}}));
    let conf = fixture.root.path().join("conf");
    fs::create_dir(&conf).unwrap();
    fs::write(conf.join("10.conflist"), r#"{"name":"net","cniVersion":"1.1.0","plugins":[{"type":"a"}]}"#)
        .unwrap();
    let mut add = command(&fixture, &["add", "--id", "id1", "--netns", "/proc/self/ns/net"]);
    let mut add = add.stdout(Stdio::null()).spawn().unwrap();
    fixture.wait_for_calls(1).await;
    add.kill().unwrap();
    add.wait().unwrap();
    let was_done = fixture.done().len();
    fs::write(gate, "").unwrap();
    wait_until("the plugin's end", || fixture.done().len() == 1).await;
    assert_eq!(was_done, 0);
}

#[test]
fn errors_say_what_to_do() {
    let fixture = Fixture::new(&[]);
    let output = berth_cni(&fixture, &["status"]);
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("no network configuration in") && message.contains("put a .conflist there"),
        "{message}"
    );
    let output = berth_cni(&fixture, &["gc"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--keep"));
}
