from .file import GgufFile as GgufFile
from .header import GgufTensor as GgufTensor
