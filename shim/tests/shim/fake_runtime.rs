//! An OCI runtime that does what a test says.
//!
//! It has the command line of runc and no containers: a container's init is a process of the host in a session of its
//! own. Annotations of the bundle's spec make it misbehave, see [`Wish`].

use std::env;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The name under which this program is a runtime.
pub(crate) const NAME: &str = "fake-runtime";

/// The annotation that says how `create` misbehaves.
pub(crate) const CREATE: &str = "berth.test/create";

/// How `create` misbehaves.
enum Wish {
    /// Prints this and fails.
    Fail(String),
    /// Never ends.
    Hang,
    /// Waits until this file exists.
    WaitFor(PathBuf),
    /// Works, but the init process exits before it is started.
    DeadInit,
    /// Is killed.
    Die,
    None,
}

type Outcome = Result<(), Box<dyn Error>>;

pub(crate) fn is_called() -> bool {
    env::args_os().next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == NAME))
}

pub(crate) fn main() -> ExitCode {
    let call = Call::parse(env::args().skip(1));
    let outcome = match call.verb.as_str() {
        "create" => create(&call),
        "init" => init(&call),
        "start" => start(&call),
        "state" => state(&call),
        "kill" => send_signal(&call),
        "delete" => delete(&call),
        "exec" => exec(&call),
        "pause" => signal_group(&call, Signal::SIGSTOP),
        "resume" => signal_group(&call, Signal::SIGCONT),
        "update" => update(&call),
        "features" => features(),
        other => Err(format!("command {other:?} is not faked").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            call.report(&message.to_string());
            ExitCode::FAILURE
        }
    }
}

/// A command line: flags anywhere, the verb, its operands.
#[derive(Default)]
struct Call {
    verb: String,
    operands: Vec<String>,
    flags: Vec<(String, String)>,
}

/// Flags of runc and crun that take a value.
const VALUED: [&str; 13] = [
    "root",
    "log",
    "log-format",
    "bundle",
    "b",
    "pid-file",
    "console-socket",
    "process",
    "p",
    "resources",
    "r",
    "format",
    "f",
];

impl Call {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Call {
        let mut call = Call::default();
        while let Some(argument) = arguments.next() {
            let flag = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-').filter(|flag| !flag.is_empty()));
            match flag {
                Some(flag) if flag.contains('=') => {
                    let (name, value) = flag.split_once('=').unwrap();
                    call.flags.push((name.to_owned(), value.to_owned()));
                }
                Some(flag) if VALUED.contains(&flag) && !(call.verb == "delete" && flag == "f") => {
                    call.flags.push((flag.to_owned(), arguments.next().expect("a value")));
                }
                Some(flag) => call.flags.push((flag.to_owned(), String::new())),
                None if call.verb.is_empty() => call.verb = argument,
                None => call.operands.push(argument),
            }
        }
        call
    }

    fn flag(&self, names: &[&str]) -> Option<&str> {
        self.flags.iter().find(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value.as_str())
    }

    fn id(&self) -> Result<&str, &'static str> {
        self.operands.first().map(String::as_str).ok_or("container id cannot be empty")
    }

    fn state_dir(&self) -> Result<PathBuf, &'static str> {
        let root = self.flag(&["root"]).map_or_else(|| env::temp_dir().join(NAME), PathBuf::from);
        Ok(root.join(self.id()?))
    }

    /// The init's pid; the error is runc's.
    fn pid(&self) -> Result<Pid, Box<dyn Error>> {
        let file = self.state_dir()?.join("pid");
        let text = fs::read_to_string(file).map_err(|_missing| "container does not exist")?;
        Ok(text.parse().map(Pid::from_raw)?)
    }

    fn report(&self, message: &str) {
        if let Some(path) = self.flag(&["log"]) {
            let entry = json!({ "level": "error", "msg": message, "time": "2026-11-21T00:00:00Z" });
            let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
            writeln!(log, "{entry}").unwrap();
        }
        eprintln!("{message}");
    }
}

fn create(call: &Call) -> Outcome {
    let bundle = call.flag(&["bundle", "b"]).map_or_else(env::current_dir, |bundle| Ok(bundle.into()))?;
    let spec: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    let wish = wish(spec["annotations"][CREATE].as_str().unwrap_or_default());
    match &wish {
        Wish::Fail(message) => return Err(message.clone().into()),
        Wish::Hang => loop {
            std::thread::park();
        },
        Wish::WaitFor(path) => {
            while !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        Wish::Die => {
            kill(Pid::this(), Signal::SIGKILL)?;
        }
        Wish::DeadInit | Wish::None => {}
    }
    let state = call.state_dir()?;
    fs::create_dir_all(&state)?;
    nix::unistd::mkfifo(&state.join("exec.fifo"), nix::sys::stat::Mode::S_IRWXU)?;
    let program = env::args_os().next().ok_or("a name")?;
    let mut init = Command::new(program);
    init.arg("init").arg(&state).arg(bundle.join("config.json"));
    if matches!(wish, Wish::DeadInit) {
        init.arg("dead");
    }
    let child = init.process_group(0).spawn()?;
    fs::write(state.join("pid"), child.id().to_string())?;
    fs::write(state.join("bundle"), bundle.display().to_string())?;
    if let Some(path) = call.flag(&["pid-file"]) {
        fs::write(path, child.id().to_string())?;
    }
    Ok(())
}

fn wish(text: &str) -> Wish {
    match text.split_once(':').unwrap_or((text, "")) {
        ("fail", message) => Wish::Fail(message.to_owned()),
        ("hang", _) => Wish::Hang,
        ("wait-for", path) => Wish::WaitFor(path.into()),
        ("dead-init", _) => Wish::DeadInit,
        ("die", _) => Wish::Die,
        _ => Wish::None,
    }
}

/// The container's init: waits for `start`, then becomes the process of the spec.
fn init(call: &Call) -> Outcome {
    let [state, config, rest @ ..] = call.operands.as_slice() else {
        return Err("init takes two operands".into());
    };
    if !rest.is_empty() {
        return Ok(());
    }
    let spec: Value = serde_json::from_slice(&fs::read(config)?)?;
    let fifo = Path::new(state).join("exec.fifo");
    // Blocks until `start` opens the other end.
    OpenOptions::new().write(true).open(fifo).and_then(|mut fifo| fifo.write_all(b"0"))?;
    Err(command_of(&spec["process"])?.exec().into())
}

fn start(call: &Call) -> Outcome {
    let pid = call.pid()?;
    if kill(pid, None) == Err(Errno::ESRCH) || is_zombie(pid) {
        return Err("cannot start a container that has stopped".into());
    }
    let mut byte = [0];
    let fifo = call.state_dir()?.join("exec.fifo");
    File::open(&fifo).and_then(|mut fifo| fifo.read_exact(&mut byte))?;
    Ok(fs::remove_file(fifo)?)
}

fn state(call: &Call) -> Outcome {
    let pid = call.pid()?;
    let dir = call.state_dir()?;
    let gone = kill(pid, None).is_err() || is_zombie(pid);
    let status = match (gone, dir.join("exec.fifo").exists()) {
        (true, _) => "stopped",
        (false, true) => "created",
        (false, false) => "running",
    };
    let bundle = fs::read_to_string(dir.join("bundle"))?;
    print(
        &json!({ "ociVersion": "1.1.0", "id": call.id()?, "status": status, "pid": pid.as_raw(), "bundle": bundle }),
    )
}

fn send_signal(call: &Call) -> Outcome {
    let pid = call.pid()?;
    let number = call.operands.get(1).map_or(Ok(15), |number| number.parse::<i32>())?;
    let signal = Signal::try_from(number)?;
    let all = call.flag(&["all", "a"]).is_some();
    let target = if all { Pid::from_raw(-pid.as_raw()) } else { pid };
    if is_zombie(pid) && !all {
        return Err("container not running".into());
    }
    Ok(kill(target, signal).map_err(|_gone| "container not running")?)
}

fn signal_group(call: &Call, signal: Signal) -> Outcome {
    Ok(kill(Pid::from_raw(-call.pid()?.as_raw()), signal)?)
}

fn delete(call: &Call) -> Outcome {
    let force = call.flag(&["force", "f"]).is_some();
    let pid = match call.pid() {
        Ok(pid) => pid,
        Err(_missing) if force => return Ok(()),
        Err(missing) => return Err(missing),
    };
    let living = kill(pid, None).is_ok() && !is_zombie(pid);
    if living && !force {
        return Err(format!("cannot delete container {} that is not stopped: running", call.id()?).into());
    }
    // Whatever is left in the session goes with the container.
    let _nobody = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL).is_err();
    Ok(fs::remove_dir_all(call.state_dir()?)?)
}

/// Starts a process and leaves it, as `exec --detach`.
fn exec(call: &Call) -> Outcome {
    let init = call.pid()?;
    let path = call.flag(&["process", "p"]).ok_or("exec needs --process")?;
    let process: Value = serde_json::from_slice(&fs::read(path)?)?;
    let child = command_of(&process)?.process_group(init.as_raw()).spawn().map_err(|error| {
        format!("exec failed: unable to start container process: exec: {}: {error}", process["args"][0])
    })?;
    if let Some(path) = call.flag(&["pid-file"]) {
        fs::write(path, child.id().to_string())?;
    }
    Ok(())
}

fn update(call: &Call) -> Outcome {
    let path = call.flag(&["resources", "r"]).ok_or("update needs --resources")?;
    let mut resources = Vec::new();
    match path {
        "-" => std::io::stdin().read_to_end(&mut resources)?,
        path => File::open(path)?.read_to_end(&mut resources)?,
    };
    Ok(fs::write(call.state_dir()?.join("resources.json"), resources)?)
}

fn features() -> Outcome {
    print(&json!({ "ociVersionMin": "1.0.0", "ociVersionMax": "1.1.0" }))
}

fn print(value: &Value) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{value}")?)
}

/// The command of an OCI process, in an environment of its own.
fn command_of(process: &Value) -> Result<Command, &'static str> {
    let texts = |name: &str| process[name].as_array().cloned().unwrap_or_default();
    let args: Vec<String> = texts("args").iter().filter_map(|arg| arg.as_str().map(str::to_owned)).collect();
    let (program, rest) = args.split_first().ok_or("args must not be empty")?;
    let mut command = Command::new(program);
    command.args(rest).env_clear();
    for variable in texts("env") {
        if let Some((name, value)) = variable.as_str().and_then(|variable| variable.split_once('=')) {
            command.env(name, value);
        }
    }
    Ok(command)
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
