//! The shim's program, called with anything.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use serde_json::Value;

use super::pod::SANDBOX_CONFIG;
use super::{Conn, World, until};

/// A bundle in which the program is called.
pub(crate) struct Raw<'w> {
    world: &'w World,
    id: String,
    pub(crate) bundle: PathBuf,
}

impl<'w> Raw<'w> {
    /// A sandbox's bundle, as containerd makes it.
    pub(crate) fn new(world: &'w World, id: &str) -> Raw<'w> {
        Raw::with_config(world, id, SANDBOX_CONFIG)
    }

    pub(crate) fn with_config(world: &'w World, id: &str, config: &[u8]) -> Raw<'w> {
        let bundle = world.bundle(id);
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        fs::write(bundle.join("config.json"), config).unwrap();
        Raw { world, id: id.to_owned(), bundle }
    }

    /// A call as containerd makes it.
    pub(crate) fn command(&self, action: &str) -> Command {
        let mut command = self.bare();
        command.args(["-namespace", self.world.name(), "-id", &self.id, "-address"]);
        command.arg(self.world.containerd.socket().with_extension("")).arg(action);
        command
    }

    /// A call without arguments.
    pub(crate) fn bare(&self) -> Command {
        let mut command = Command::new(&self.world.subject().shim);
        command.current_dir(&self.bundle).env("TTRPC_ADDRESS", self.world.containerd.socket());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, stdin: &[u8]) -> Output {
        run(&mut self.command("start"), stdin)
    }

    /// Starts a shim that must come up; returns its socket.
    pub(crate) fn start_well(&self, stdin: &[u8]) -> PathBuf {
        let output = self.start(stdin);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        address_of(&output)
    }

    /// The pid of the shim that was started here, if one was.
    pub(crate) fn shim_pid(&self) -> Option<u32> {
        fs::read_to_string(self.bundle.join("shim.pid")).ok()?.parse().ok()
    }

    /// Ends the shim that was started here.
    pub(crate) fn delete(&self) -> Output {
        let output = run(&mut self.command("delete"), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }
}

/// Where a `start` says that the shim is.
pub(crate) fn address_of(output: &Output) -> PathBuf {
    let result: Value = serde_json::from_slice(&output.stdout).expect("an address and nothing else");
    assert_eq!((&result["version"], &result["protocol"]), (&3.into(), &"ttrpc".into()));
    result["address"].as_str().unwrap().strip_prefix("unix://").unwrap().into()
}

/// The pid of the shim behind a socket.
pub(crate) fn served_by(socket: &std::path::Path) -> u32 {
    let request = ConnectRequest { id: "x".to_owned() };
    let answer: ConnectResponse =
        Conn::open(socket).call(berth_proto::TASK_V3, task_service::CONNECT, &request).unwrap();
    answer.shim_pid
}

/// Runs a call to its end, which must come.
pub(crate) fn run(command: &mut Command, stdin: &[u8]) -> Output {
    let mut child = command.spawn().unwrap();
    // A call that refuses its input does not read it to the end.
    let _refused = child.stdin.take().map(|mut input| input.write_all(stdin).is_err());
    finish(child)
}

/// Waits for the end of a call; one that hangs is killed and fails the test.
pub(crate) fn finish(mut child: Child) -> Output {
    struct Killed<'c>(&'c mut Child);
    impl Drop for Killed<'_> {
        fn drop(&mut self) {
            let _ended = self.0.kill().is_err();
        }
    }
    let status = {
        let child = Killed(&mut child);
        until("the end of the call", || child.0.try_wait().unwrap())
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

/// That a call has failed as it should: with words for its client, none for its parser, and no panic.
pub(crate) fn assert_refused(what: &str, output: &Output) {
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{what}: {words}");
    assert!(output.stdout.is_empty(), "{what} has printed {:?}", String::from_utf8_lossy(&output.stdout));
    assert!(words.starts_with("failed to ") && !words.contains("panicked"), "{what}: {words:?}");
}
