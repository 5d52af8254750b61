# Builds examples/plugin_int8g as its author would: against the SDK installed into a folder of its own.
#   cmake -DSOURCE=<tree> -DBUILD=<build> -DWORK=<scratch> -DGENERATOR=... -DCOMPILER=... -DLAUNCHER=... -P this
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --component sdk --prefix ${WORK}/sdk)
# A copy, so that nothing of the tree is reachable by a relative path.
file(COPY ${SOURCE}/examples/plugin_int8g DESTINATION ${WORK})
run(${CMAKE_COMMAND} -S ${WORK}/plugin_int8g -B ${WORK}/build -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${WORK}/sdk -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/sdk/bin/atlas-kernel-check --platform cpu --only-plugins
  --plugin ${WORK}/build/lib/atlas/plugins/int8g.so)
