// Left out: a source that registers operators is built with torch's own headers.
#pragma once
