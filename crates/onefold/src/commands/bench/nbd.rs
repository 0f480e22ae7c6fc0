//! An NBD export as the target of a load.

use onefold_api::{Error, Result};
use onefold_nbd::client::{Address, Client};
use onefold_nbd::wire::transmission_flag;
use onefold_workload::{Connection, Load, Target};
use std::io;

/// An NBD export to which a load can connect.
#[derive(Debug)]
pub(super) struct NbdTarget {
    address: Address,
    bytes: u64,
    is_read_only: bool,
    /// Whether all connections see the same data.
    is_shared: bool,
    /// The smallest and the largest size of a request.
    request_bytes: (u32, u32),
}

impl NbdTarget {
    /// Connects to the server and reads the export's properties.
    pub(super) fn open(address: &Address) -> Result<Self> {
        let client = Client::connect(address);
        let client =
            client.map_err(|e| Error::io(format_args!("cannot attach to {address}"), &e))?;
        Ok(Self {
            address: address.clone(),
            bytes: client.bytes(),
            is_read_only: client.has(transmission_flag::READ_ONLY),
            is_shared: client.has(transmission_flag::CAN_MULTI_CONN),
            request_bytes: client.request_bytes(),
        })
    }

    /// Fails if the export does not accept the load's requests.
    pub(super) fn check(&self, block_bytes: u64, load: &Load) -> Result<()> {
        let refused = |what: String| Err(Error::usage(format!("{}: {what}", self.address)));
        if self.is_read_only {
            return refused("it is read-only".to_owned());
        }
        if load.jobs > 1 && !self.is_shared {
            return refused(
                "its server does not say that several connections see the same: --jobs 1"
                    .to_owned(),
            );
        }
        let (least, most) = self.request_bytes;
        if block_bytes < u64::from(least) || load.request_bytes > u64::from(most) {
            return refused(format!(
                "it takes requests of {least} to {most} bytes, not blocks of {block_bytes} and requests \
                 of {}",
                load.request_bytes
            ));
        }
        Ok(())
    }
}

impl Target for NbdTarget {
    fn name(&self) -> String {
        self.address.to_string()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(Job(Client::connect(&self.address)?)))
    }
}

/// The connection of one job.
struct Job(Client);

impl Connection for Job {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read(bytes, at)
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write(0, bytes, at)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
