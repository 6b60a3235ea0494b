//! The options of `berth-cni`.

use std::path::PathBuf;

use berth_cni::{ContainerId, InterfaceName, PluginType, ValidAttachment};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Attach containers to networks with CNI plugins, and find out why it does not work.
#[derive(Debug, Parser)]
#[command(name = "berth-cni", version)]
pub(crate) struct Options {
    /// The directory of network configurations; the first file by name counts.
    #[arg(long, global = true, default_value = "/etc/cni/net.d")]
    pub conf_dir: PathBuf,
    /// A directory of plugins; may be repeated.
    #[arg(long, global = true, default_value = "/opt/cni/bin")]
    pub bin_dir: Vec<PathBuf>,
    /// The directory of results and records.
    #[arg(long, global = true, default_value = "/var/lib/cni")]
    pub cache_dir: PathBuf,
    /// How many seconds everything may take.
    #[arg(long, global = true, default_value_t = 60)]
    pub timeout: u64,
    /// The form of the answer.
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Attach a container to the network, and bring up its lo.
    Add(Target),
    /// Detach it, by the configuration it was attached with.
    Del(Target),
    /// Ask the plugins whether it is still attached as it should be.
    Check(Target),
    /// Detach what this command has attached to the network and is not to be kept.
    Gc {
        /// An attachment to keep, as ID or ID/INTERFACE; may be repeated.
        #[arg(long, value_name = "ID[/INTERFACE]", value_parser = parse_keep, required_unless_present = "keep_none")]
        keep: Vec<ValidAttachment>,
        /// Keep none.
        #[arg(long, conflicts_with = "keep")]
        keep_none: bool,
        /// Also ask plugins of CNI 1.1 to remove everything that is not written down in the cache directory. Only where
        /// nothing else attaches containers to the network, a running agent included.
        #[arg(long)]
        ask_plugins: bool,
    },
    /// Ask the plugins whether a container could be attached.
    Status,
    /// Ask plugins which CNI versions they support; by default those of the network.
    Version {
        /// The plugins to ask.
        plugins: Vec<PluginType>,
    },
    /// Show the networks in the configuration directory, in the order they are used.
    List,
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The container's id.
    #[arg(long)]
    pub id: ContainerId,
    /// The path of its network namespace, such as /run/netns/NAME; may be left out for del.
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// Its interface.
    #[arg(long, default_value = "eth0")]
    pub ifname: InterfaceName,
    /// A pair for CNI_ARGS; may be repeated.
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub args: Vec<(String, String)>,
    /// Capability arguments as a JSON object, such as '{"mac":"02:00:00:00:00:01"}'.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub capability_args: String,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_keep(text: &str) -> Result<ValidAttachment, berth_cni::NameError> {
    let (id, ifname) = text.split_once('/').unwrap_or((text, "eth0"));
    Ok(ValidAttachment { container_id: id.parse()?, ifname: ifname.parse()? })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn what_to_keep_must_be_said() {
        Options::try_parse_from(["berth-cni", "gc"]).unwrap_err();
        Options::try_parse_from(["berth-cni", "gc", "--keep", "a/b/c"]).unwrap_err();
        let parsed = Options::try_parse_from(["berth-cni", "gc", "--keep", "a/eth1", "--keep", "b"]).unwrap();
        let Command::Gc { keep, .. } = parsed.command else { panic!("gc was asked for") };
        assert_eq!(keep[0].ifname.as_str(), "eth1");
        assert_eq!(keep[1].ifname.as_str(), "eth0");
    }
}
