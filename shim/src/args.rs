//! The command line that containerd gives a shim: Go's flags, one action, and our own two.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use thiserror::Error;

/// What the process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Make a shim for a bundle, or find the one of its group; print its address.
    Start,
    /// Clean up after a shim that is lost.
    Delete,
    /// Be a shim.
    Serve,
    /// Be the PID 1 of a pod.
    PodInit,
    /// Describe the runtime.
    Info,
    /// Print the version.
    Version,
}

/// The arguments, parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) command: Command,
    pub(crate) namespace: String,
    pub(crate) id: String,
    /// containerd's gRPC socket.
    pub(crate) address: String,
    pub(crate) bundle: Option<PathBuf>,
    /// The listening socket, for `serve`.
    pub(crate) socket_fd: Option<RawFd>,
    pub(crate) debug: bool,
}

/// What is wrong with an argument list.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ArgsError {
    /// Bytes that are no text.
    #[error("parse arguments: {0:?} is not UTF-8")]
    NotText(OsString),
    /// A flag that no containerd passes.
    #[error("parse arguments: flag {0:?} is unknown")]
    UnknownFlag(String),
    /// A flag at the end of the list.
    #[error("parse arguments: flag -{0} has no value")]
    NoValue(String),
    /// A number that is none.
    #[error("parse arguments: -socket-fd {0:?} is not a descriptor number")]
    BadNumber(String),
    /// An action that no containerd asks for.
    #[error("parse arguments: action {0:?} is unknown; expected start or delete")]
    UnknownAction(String),
    /// Neither an action nor `-info` or `-v`.
    #[error("parse arguments: no action; containerd starts this program, with start or delete")]
    NoAction,
}

/// Parses the arguments after the program's name. Flags may begin with one or two dashes and carry their value after
/// `=` or as the next argument, as Go's `flag` package reads them.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Args, ArgsError> {
    let texts = arguments.into_iter().map(|argument| argument.into().into_string());
    let texts: Vec<String> = texts.collect::<Result<_, _>>().map_err(ArgsError::NotText)?;
    let mut arguments = texts.into_iter();
    let mut args = Args {
        command: Command::Start,
        namespace: String::new(),
        id: String::new(),
        address: String::new(),
        bundle: None,
        socket_fd: None,
        debug: false,
    };
    let mut command = None;
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix('-') else {
            command = Some(action(&argument)?);
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (name, value) =
            flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
        match name {
            "debug" => args.debug = value.is_none_or(|value| value != "false"),
            "info" => command = Some(Command::Info),
            "v" | "version" => command = Some(Command::Version),
            "namespace" | "id" | "address" | "bundle" | "socket-fd" | "publish-binary" => {
                let value =
                    value.or_else(|| arguments.next()).ok_or_else(|| ArgsError::NoValue(name.to_owned()))?;
                set(&mut args, name, value)?;
            }
            _ => return Err(ArgsError::UnknownFlag(argument)),
        }
    }
    args.command = command.ok_or(ArgsError::NoAction)?;
    Ok(args)
}

fn action(name: &str) -> Result<Command, ArgsError> {
    match name {
        "start" => Ok(Command::Start),
        "delete" => Ok(Command::Delete),
        "serve" => Ok(Command::Serve),
        crate::sys::POD_INIT => Ok(Command::PodInit),
        _ => Err(ArgsError::UnknownAction(name.to_owned())),
    }
}

fn set(args: &mut Args, name: &str, value: String) -> Result<(), ArgsError> {
    match name {
        "namespace" => args.namespace = value,
        "id" => args.id = value,
        "address" => args.address = value,
        "bundle" => args.bundle = Some(value.into()),
        "socket-fd" => {
            args.socket_fd = Some(value.parse().map_err(|_not_a_number| ArgsError::BadNumber(value))?);
        }
        // The binary that old containerd versions wanted events published with; events go by ttrpc.
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parsed(line: &str) -> Result<Args, ArgsError> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_what_containerd_passes() {
        let line =
            "-namespace k8s.io -address /run/c.sock -publish-binary /bin/containerd -id c1 -debug start";
        let args = parsed(line).unwrap();
        assert_eq!(
            (args.namespace.as_str(), args.id.as_str(), args.address.as_str()),
            ("k8s.io", "c1", "/run/c.sock")
        );
        assert_eq!((args.command, args.debug), (Command::Start, true));
        let args = parsed("--namespace=n --id=c1 -bundle /b delete").unwrap();
        assert_eq!((args.command, args.bundle), (Command::Delete, Some("/b".into())));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert_eq!(parsed("-id c1"), Err(ArgsError::NoAction));
        let bytes = OsString::from_vec(vec![0xff]);
        assert_eq!(parse([bytes.clone()]), Err(ArgsError::NotText(bytes)));
        assert_eq!(parsed("-frob start"), Err(ArgsError::UnknownFlag("-frob".to_owned())));
        assert_eq!(parsed("stop"), Err(ArgsError::UnknownAction("stop".to_owned())));
        assert_eq!(parsed("start -id"), Err(ArgsError::NoValue("id".to_owned())));
        assert_eq!(parsed("-socket-fd x serve"), Err(ArgsError::BadNumber("x".to_owned())));
    }
}
