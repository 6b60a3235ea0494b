//! Sessions from end to end in one process: a client on loopback, the endpoints behind hyper, and a shim on a socket.

mod attached;
mod begun;
mod client;
mod commands;
mod counted;
mod gone;
mod many_at_once;
mod mux;
mod ports;
mod runs;
mod shim;
mod world;
