"""Errors as nodes and providers give them, in the order in which `faults` tries them. Data only.

Each rule: code (None: any), pattern, an example as it was seen, and who gives it. An empty pattern fits every
message of that code. Patterns are in small letters, because the message is before it is compared: that is several
times faster than comparing without regard to case.
"""

from __future__ import annotations

Rule = tuple[int | None, str, str, str]

# --- Answers that are final, before words in them can be taken for a node's own --------------------------------

_ETH_FINAL: tuple[Rule, ...] = (
    (3, r"", "execution reverted: rate limit exceeded", "geth, erigon, reth, anvil"),
    (
        None,
        r"\brevert",
        "Error: VM Exception while processing transaction: reverted with reason string 'Too many requests'",
        "hardhat, besu, nethermind, ganache",
    ),
    (-32015, r"", "VM execution error.", "nethermind, openethereum"),
    (-32603, r"\bevm error\b", "EVM error OutOfGas", "anvil"),
    (
        None,
        r"\bgas (limit|required|allowance|too)|\bintrinsic gas|out of gas",
        "Transaction gas limit exceeds block gas limit",
        "besu, as -32005",
    ),
    (
        None,
        r"insufficient (funds|balance|sender balance)|upfront cost exceeds",
        "insufficient funds for gas * price + value: address 0x3a1f have 0 want 252000002265890",
        "geth, as -32000 or -32003",
    ),
    (None, r"\bnonce\b.*\b(low|high)\b", "nonce too low: next nonce 5, tx nonce 4", "geth, reth"),
    (None, r"underpriced", "replacement transaction underpriced", "geth, besu, anvil"),
)

_STARKNET_FINAL: tuple[Rule, ...] = (
    (10, r"", "No trace available for transaction", "specification"),
    (20, r"", "Contract not found", "pathfinder, juno, madara"),
    (21, r"", "Requested entry point does not exist in the contract", "juno"),
    (25, r"", "Invalid transaction hash", "pathfinder, juno"),
    (26, r"", "Invalid block hash", "pathfinder, juno"),
    (27, r"", "Invalid transaction index in a block", "pathfinder, juno, madara"),
    (28, r"", "Class hash not found", "pathfinder, juno, madara"),
    (29, r"", "Transaction hash not found", "pathfinder, juno, madara"),
    (31, r"", "Requested page size is too big", "pathfinder, juno, madara"),
    (33, r"", "The supplied continuation token is invalid or unknown", "pathfinder, juno"),
    (34, r"", "Too many keys provided in a filter", "pathfinder, juno, madara"),
    (40, r"", "Contract error", "pathfinder, juno, madara"),
    (41, r"", "Transaction execution error", "pathfinder, juno, madara"),
    (50, r"", "Invalid contract class", "pathfinder, juno"),
    (51, r"", "Class already declared", "pathfinder, juno, madara"),
    (52, r"", "Invalid transaction nonce", "pathfinder, juno, madara"),
    (53, r"", "The transaction's resources don't cover validation or the minimal transaction fee", "pathfinder"),
    (54, r"", "Account balance is smaller than the transaction's max_fee", "juno, madara"),
    (55, r"", "Account validation failed", "pathfinder, juno, madara"),
    (56, r"", "Compilation failed", "pathfinder, juno, madara"),
    (57, r"", "Contract class size is too large", "pathfinder, juno, madara"),
    (58, r"", "Sender address is not an account contract", "pathfinder, juno, madara"),
    (60, r"", "the compiled class hash did not match the one supplied in the transaction", "juno"),
    (61, r"", "the transaction version is not supported", "juno"),
    (62, r"", "the contract class version is not supported", "juno"),
    (63, r"", "An unexpected error occurred", "pathfinder, juno, madara"),
    (64, r"", "Replacement transaction is underpriced", "juno"),
    (65, r"", "Transaction fee below minimum", "juno"),
    (66, r"", "Invalid subscription id", "pathfinder, juno"),
    (67, r"", "Too many addresses in filter sender_address filter", "pathfinder, juno"),
    (68, r"", "Cannot go back more than 1024 blocks", "pathfinder, juno"),
    (69, r"", "The proof field in the invoke v3 transaction is invalid", "pathfinder, juno"),
    (100, r"", "Failed to compile the contract", "specification"),
)

# --- A transaction that is there already (writes only) -----------------------------------------------------

_ETH_KNOWN: tuple[Rule, ...] = (
    (None, r"\balready ?known\b", "ALREADY_EXISTS: already known", "geth, erigon, reth, nethermind"),
    (None, r"existing tx with same hash", "INTERNAL_ERROR: existing tx with same hash", "erigon"),
    (None, r"\bknown transaction\b", "Known transaction", "besu; old geth"),
    (
        None,
        r"same hash was already imported",
        "Transaction with the same hash was already imported.",
        "openethereum, as -32010",
    ),
    (None, r"transaction already imported", "transaction already imported", "anvil, as -32003"),
)

_STARKNET_KNOWN: tuple[Rule, ...] = (
    (59, r"", "A transaction with the same hash already exists in the mempool", "pathfinder, juno, madara"),
)

# --- A block that is not there yet --------------------------------------------------------------------------

_ETH_NO_TAG: tuple[Rule, ...] = (
    (
        None,
        r"(pending|safe|finalized) block (is )?not (found|available)",
        "finalized block not found",
        "geth before it knows of finality",
    ),
)

_ETH_LAGGING: tuple[Rule, ...] = (
    (
        None,
        r"beyond (the )?current head",
        "block range extends beyond current head block: requested 125011129, head 125011127",
        "geth, as -32602",
    ),
    (None, r"\bheader (for hash )?not found\b", "header not found", "geth, erigon, reth"),
    (
        None,
        r"block height is \d+ but requested was",
        "BlockOutOfRangeError: block height is 42 but requested was 43",
        "anvil, as -32602",
    ),
    (None, r"\bunknown block\b", "Unknown block", "besu as -39001, dRPC as 26"),
    (
        None,
        r"\bblock (#?\d+ |0x[0-9a-f]+ |requested )?(was )?not (yet )?(found|available|imported)\b",
        "block not found: 0x1312d00",
        "reth as -32001, besu and geth as -32000",
    ),
    (None, r"^\S+ could not be found$", "4294967295 could not be found", "nethermind"),
    (
        None,
        r"could not find (newest )?block",
        "could not find newest block number requested: 0x2b",
        "anvil, for eth_feeHistory",
    ),
    (
        None,
        r"blocks specified in filter .*cannot be found",
        "One of the blocks specified in filter (fromBlock, toBlock or blockHash) cannot be found.",
        "Alchemy",
    ),
    (None, r"unsupported block number", "unsupported block number 73212607", "arbitrum nitro"),
    (
        None,
        r"does not have the requested block",
        "upstream does not have the requested block yet",
        "providers in front of geth",
    ),
    (None, r"is not currently canonical", "hash 0x5a1f is not currently canonical", "geth on another branch"),
    (-32001, r"resource not found", "Resource not found", "anvil"),
)

_STARKNET_LAGGING: tuple[Rule, ...] = (
    (24, r"", "Block not found", "pathfinder, juno, madara"),
    (32, r"", "There are no blocks", "pathfinder, juno, madara"),
)

# --- State or history that is not there any more ------------------------------------------------------------

_ETH_PRUNED: tuple[Rule, ...] = (
    (
        None,
        r"missing trie node",
        "missing trie node b03d68ac51042467d7637d4ef9e1c52370abc410f263166965cb1e280b1f6d17 (path )",
        "geth",
    ),
    (
        None,
        r"historical state\b.*\b(unavailable|not available)|\bstate 0x\S+ is not available",
        "required historical state unavailable (reexec=128)",
        "geth",
    ),
    (
        None,
        r"no state available for block",
        "No state available for block 0xe7b1e5b5b5c730816ef2b9627a85c227f6924f27504f1b36cc7328bff79ecc6e",
        "nethermind, as -32002",
    ),
    (None, r"world state (is )?(un|not )available", "World state unavailable", "besu"),
    (None, r"state at block #?\d+ is pruned", "state at block #17000000 is pruned", "reth"),
    (4444, r"", "pruned history unavailable", "geth, reth"),
    (
        None,
        r"history\b.*\bpruned|pruned history|\bhas been pruned",
        "History has been pruned for this block. To remove restrictions, order a dedicated full node",
        "public nodes, as -32701",
    ),
    (None, r"first available state is", "Unknown state. First available state is 9305", "dRPC"),
    (
        None,
        r"distance to target block\b.*\bexceeds",
        "distance to target block exceeds maximum proof window",
        "reth as -32602, arbitrum nitro",
    ),
    (
        None,
        r"no historical rpc is available",
        "no historical RPC is available for this historical (pre-bedrock) execution request",
        "op-geth, as -32801",
    ),
    (
        None,
        r"\barchive (state|data|requests?|node)\b",
        "project ID does not have access to archive state",
        "Infura, PublicNode, Ankr",
    ),
)

_STARKNET_PRUNED: tuple[Rule, ...] = (
    (
        42,
        r"",
        "the node doesn't support storage proofs for blocks that are too far in the past",
        "juno, pathfinder",
    ),
    (10001, r"", "Cannot create a storage proof for a block that old", "madara, pathfinder"),
    (None, r"\bhas been pruned", "block has been pruned", "juno"),
)

# --- Ranges of blocks that are too wide ---------------------------------------------------------------------

_ETH_TOO_WIDE: tuple[Rule, ...] = (
    (
        None,
        r"(query|log|response)s? (returned|exceeds?) (more than|max results)",
        "query returned more than 10000 results. Try with this block range [0xBDE5F8, 0x102DBCC].",
        "Infura as -32005, reth and BlastAPI as -32602",
    ),
    (
        None,
        r"response size (exceeded|should not|is larger)|response (is )?too (large|big)|exceed size limit",
        "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit",
        "Alchemy, as -32602",
    ),
    (
        None,
        r"up to a [\d,]+k? block range",
        "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block",
        "Alchemy, as -32600",
    ),
    (
        None,
        r"(eth_getlogs|eth_newfilter|logs) (is|are) limited to",
        "eth_getLogs is limited to a 10,000 range",
        "QuickNode, as -32614",
    ),
    (
        None,
        r"\branges?\b( is)? (too (wide|large|high|big)|greater than|bigger than|larger than)",
        "block range is too wide",
        "Ankr as -32600, Cloudflare as -32047, BSC",
    ),
    (
        None,
        r"exceed\w*( the)? max\w*( allowed)?( block)? range|\brange\b.* exceeds? (the )?(max|limit|\d)",
        "Requested range exceeds maximum RPC range limit",
        "besu as -32005, Infura, NodeReal",
    ),
    (None, r"ranges over [\d,]+ blocks", "ranges over 10000 blocks are not supported on free plan", "dRPC, as 35"),
    (
        None,
        r"too wide blocks? range|requested too many blocks|blocks distance|limit the query to at most",
        "requested too many blocks from 50331648 to 51380224, maximum is set to 2048",
        "avalanche, sonic, cronos, coinbase",
    ),
    (
        None,
        r"logs matched by query exceeds limit|more than allowed number of logs",
        "logs matched by query exceeds limit of 10000",
        "arbitrum nitro",
    ),
    (
        None,
        r"consider reducing your block range|retry (with )?(a )?smaller|try with (a )?smaller block range",
        "Query timeout exceeded. Consider reducing your block range.",
        "Alchemy",
    ),
)

# --- A method that another upstream may have ----------------------------------------------------------------

_UNSUPPORTED: tuple[Rule, ...] = (
    (
        -32601,
        r"",
        "the method debug_traceCall does not exist/is not available",
        "geth, erigon, reth, anvil, juno, pathfinder",
    ),
    (
        None,
        r"method (\S+ )?(is )?not (supported|found|enabled|allowed|whitelisted|available)|unsupported method",
        "Unsupported method: debug_traceCall on ETH_MAINNET",
        "Alchemy as -32600, besu as -32604, hardhat as -32004",
    ),
    (
        None,
        r"not included in your (current )?plan|not available on the free tier|does not have access to this method",
        "trace_block is not included in your current plan",
        "Alchemy, QuickNode",
    ),
    (None, r"^(not implemented|unimplemented method)", "Not implemented", "anvil, as -32603"),
)

# --- Enough for now -----------------------------------------------------------------------------------------

_QUOTA: tuple[Rule, ...] = (
    (429, r"", "Monthly capacity limit exceeded.", "Alchemy"),
    (
        None,
        r"compute units|capacity limit|scaling policy",
        "Your app has exceeded its compute units per second capacity. If you have retries enabled, you can",
        "Alchemy, inside a batch",
    ),
    (
        None,
        r"(daily|monthly) (request|usage)",
        "daily request count exceeded, request rate limited",
        "Infura as -32005, QuickNode as -32003",
    ),
    (
        None,
        r"/sec(ond)?\b|calls per second",
        "15/second request limit reached - reduce calls per second or upgrade your account at quicknode.com",
        "QuickNode, as -32007",
    ),
    (None, r"request rate exceeded", "project ID request rate exceeded", "Infura, as -32005"),
    (
        None,
        r"too many requests",
        "Too many requests, reason: call rate limit exhausted, retry in 10s",
        "Ankr, as -32090",
    ),
    (
        None,
        r"rate[- ]?limit",
        "Rate limit exceeded. To obtain higher limits, please request a personal token or a dedicated node",
        "PublicNode, Tenderly, as -32005",
    ),
    (
        None,
        r"\b(quota|credits?)\b.*\b(exceeded|exhausted|reached)|exceeded .*\b(quota|credits?)\b|usage limit",
        "You've exceeded the quota of your plan",
        "Chainstack, NodeReal, Blast",
    ),
    (
        None,
        r"on the free tier|free (tier|plan) (limit|quota)|upgrade (your|to) (tier|plan|account|paid)",
        "Request timeout on the free tier, please upgrade your tier to the paid one",
        "dRPC, as 30",
    ),
)

# --- Something is wrong with the upstream -------------------------------------------------------------------

_ETH_ELSEWHERE: tuple[Rule, ...] = (
    (None, r"transaction indexing is in progress", "transaction indexing is in progress", "geth after its start"),
    (None, r"(initial )?sync is still|is syncing|still syncing", "Initial sync is still in progress", "besu"),
    (None, r"\btxpool is full|pool is full|pool not enabled", "txpool is full", "geth, reth"),
    (None, r"max batch size|batch (is )?too large", "Number of requests exceeds max batch size", "besu"),
)

_STARKNET_ELSEWHERE: tuple[Rule, ...] = (
    (1, r"", "Failed to write transaction", "pathfinder, madara"),
    (500, r"", "Internal server error", "madara"),
    (38, r"", "Failed to fetch pending transactions", "madara"),
)

_ELSEWHERE: tuple[Rule, ...] = (
    (-32005, r"limit exceeded", "limit exceeded", "EIP-1474: does not specify whose limit"),
    (
        None,
        r"execution aborted|timed? ?out\b|deadline exceeded|timeout",
        "execution aborted (timeout = 5s)",
        "geth, reth, nethermind",
    ),
    (
        None,
        r"unauthori[sz]ed|must be authenticated|(api key|project id) (is|not|required)|invalid (api key|project)",
        "Unauthorized: You must authenticate your request with an API key.",
        "Ankr, Alchemy, Infura",
    ),
    (
        None,
        r"service (is )?(temporarily )?unavailable|server (is )?(busy|overloaded)|resource busy|try again later",
        "service temporarily unavailable, please try again later",
        "MEV Blocker, juno",
    ),
    (-32046, r"", "Cannot fulfill request", "Cloudflare"),
    (None, r"unexpected eof|connection (reset|refused)|broken pipe|bad gateway", "unexpected EOF", "geth"),
    (-32603, r"", "Internal error", "pathfinder, juno, besu, nethermind, reth"),
    (None, r"^internal (server )?error", "internal error", "providers, as -32000"),
)

RULES: tuple[tuple[str, str, tuple[Rule, ...]], ...] = (
    ("eth", "final", _ETH_FINAL),
    ("starknet", "final", _STARKNET_FINAL),
    ("eth", "known", _ETH_KNOWN),
    ("starknet", "known", _STARKNET_KNOWN),
    ("eth", "elsewhere", _ETH_NO_TAG),
    ("eth", "lagging", _ETH_LAGGING),
    ("starknet", "lagging", _STARKNET_LAGGING),
    ("eth", "pruned", _ETH_PRUNED),
    ("starknet", "pruned", _STARKNET_PRUNED),
    ("eth", "too_wide", _ETH_TOO_WIDE),
    ("", "unsupported", _UNSUPPORTED),
    ("", "quota", _QUOTA),
    ("eth", "elsewhere", _ETH_ELSEWHERE),
    ("starknet", "elsewhere", _STARKNET_ELSEWHERE),
    ("", "elsewhere", _ELSEWHERE),
)
"""By family (empty: all) and verdict."""
